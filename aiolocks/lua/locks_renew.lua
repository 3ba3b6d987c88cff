-- Sets the ttl again for each of several tokens that hold a lock. Never creates a lock that is gone.
--
-- KEYS  for each lock, one after the other, the lock and its fence
-- ARGV  for each lock, one after the other, the token, the ttl in ms, and the retention of the fence in ms
-- Returns for each lock 1 when renewed, 0 when the token does not hold it, the lease that has taken its place, or the error
--      because of which the server cannot read it
--
-- Invariants:
-- - does for each lock the same as `lock_renew`: writes with PEXPIRE alone, and reads the lock key last;
-- - a lock that cannot be read changes nothing for the others.
local replies = {}
for i = 1, #KEYS / 2 do
  local lock, fence, token = KEYS[2 * i - 1], KEYS[2 * i], ARGV[3 * i - 2]
  local held = redis.pcall('GET', lock)
  if type(held) == 'table' then
    replies[i] = held
  elseif not held or string.sub(held, 1, #token + 1) ~= token .. ':' then
    replies[i] = thief_of(token, lock)
  else
    redis.call('PEXPIRE', lock, ARGV[3 * i - 1])
    redis.call('PEXPIRE', fence, ARGV[3 * i])
    replies[i] = redis.call('GET', lock) and 1 or 0
  end
end
return replies
