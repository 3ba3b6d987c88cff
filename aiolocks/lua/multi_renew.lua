-- Sets the ttl again for the token that holds all the locks. Never creates a lock that is gone.
--
-- KEYS  n locks   n fences
-- ARGV  1 n   2 token   3 ttl, ms   4 retention of the fences, ms
-- Returns 1 when renewed, 0 when the token does not hold all of them, or the lease that has taken its place
--
-- Invariant: writes with PEXPIRE alone, so that it works on a server that is out of memory.
local n = tonumber(ARGV[1])
for i = 1, n do
  if not held_by(ARGV[2], redis.call('GET', KEYS[i])) then return thief_of(ARGV[2], KEYS[i]) end
end
for i = 1, n do
  redis.call('PEXPIRE', KEYS[i], ARGV[3])
  redis.call('PEXPIRE', KEYS[n + i], ARGV[4])
end
-- Read last: a connection that tracks them is told of each later change.
return redis.call('EXISTS', unpack(KEYS, 1, n)) == n and 1 or 0
