-- Frees the permits that were granted up to then, whoever holds them, and wakes who waits. Value and fence stay.
--
-- KEYS  1 holders   2 leases   3 queue   4 owner (only of a job)
-- ARGV  1 the latest fencing token that it frees   2 the ticket that it frees
-- Returns {how many it has freed, bells rung…}
local holders, leases = KEYS[1], KEYS[2]
local freed, held = discard('zset', holders) + discard('hash', leases), 0
for _, token in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
  local permits, minted = string.match(redis.call('HGET', leases, token) or '', '^(%d+):(%d+):')
  if is_due(minted) then
    redis.call('ZREM', holders, token)
    freed = freed + 1
  else
    held = held + permits
  end
end
for _, token in ipairs(redis.call('HKEYS', leases)) do
  if not redis.call('ZSCORE', holders, token) then redis.call('HDEL', leases, token) end
end
if held > 0 then redis.call('HSET', leases, 'held', held) end
if KEYS[4] then
  freed = freed + discard('string', KEYS[4])
  if redis.call('GET', KEYS[4]) == ARGV[2] then freed = freed + redis.call('DEL', KEYS[4]) end
end
return {freed, unpack(summon(KEYS[3], 16, true))}
