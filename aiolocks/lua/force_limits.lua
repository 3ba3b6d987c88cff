-- Frees the permits of all holders that were granted up to a fencing token, and wakes the waiters. The fence stays.
-- The next step corrects the counts beside the leases, and then calls waiters in their turns.
--
-- KEYS  1 holders   2 leases   3 queue   4 turns   5 fence
-- ARGV  1 the latest fencing token that it frees   3 the mark for the holders
-- Returns {number of leases that it has freed and keys that it has discarded, bells rung…}
local holders, leases = KEYS[1], KEYS[2]
discard_fence(KEYS[5])
local freed, left = discard('zset', holders, KEYS[4]) + discard('hash', leases), redis.call('PTTL', holders)
for _, token in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
  local minted = string.match(redis.call('HGET', leases, token) or '', '^[^:]+:(%d+):')
  if is_due(minted) then
    redis.call('ZREM', holders, token)
    tell(token, minted, left)
    freed = freed + 1
  end
end
for _, token in ipairs(redis.call('HKEYS', leases)) do
  if not redis.call('ZSCORE', holders, token) then redis.call('HDEL', leases, token) end
end
return {freed, unpack(wake_first(KEYS[3], 16, true))}
