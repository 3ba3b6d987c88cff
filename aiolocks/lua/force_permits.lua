-- Frees the permits of all holders that were granted up to a fencing token, and wakes the waiters. Value and fence stay.
--
-- KEYS  1 holders   2 leases   3 queue   4 value   5 fence
--       and of a job   6 owner   7 holders, 8 leases and 9 value of its runs that may go on beside others   10 about
-- ARGV  1 the latest fencing token that it frees   2 the ticket that it frees   3 the mark for the holders
-- Returns {number of leases that it has freed and keys that it has discarded, bells rung…}

-- Frees leases in these keys; returns the number of leases freed and keys discarded.
local function free_leases(holders, leases, value)
  local freed, held, left = discard('zset', holders) + discard('hash', leases, value), 0, redis.call('PTTL', holders)
  for _, token in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
    local permits, minted = string.match(redis.call('HGET', leases, token) or '', '^(%d+):(%d+):')
    if is_due(minted) then
      redis.call('ZREM', holders, token)
      tell(token, minted, left)
      freed = freed + 1
    else
      held = held + permits
    end
  end
  for _, token in ipairs(redis.call('HKEYS', leases)) do
    if not redis.call('ZSCORE', holders, token) then redis.call('HDEL', leases, token) end
  end
  if held > 0 then redis.call('HSET', leases, 'held', held) end
  return freed
end

-- Removes a value in which this field is no number.
local function discard_value(value, field)
  return tonumber(redis.call('HGET', value, field)) and 0 or redis.call('DEL', value)
end

discard_fence(KEYS[5])
local freed = free_leases(KEYS[1], KEYS[2], KEYS[4]) + discard_value(KEYS[4], 'current')
if KEYS[6] then
  freed = freed + free_leases(KEYS[7], KEYS[8], KEYS[9]) + discard_value(KEYS[9], 'current')
  freed = freed + discard('string', KEYS[6]) + discard('hash', KEYS[10])
  if redis.call('GET', KEYS[6]) == ARGV[2] then
    freed = freed + redis.call('DEL', KEYS[6])
    redis.call('HDEL', KEYS[10], ARGV[2])
  end
else
  freed = freed + discard_value(KEYS[4], 'first')
end
return {freed, unpack(wake_first(KEYS[3], 16, true))}
