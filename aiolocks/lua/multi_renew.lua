-- Sets the ttl again for the token that holds all the locks. Never creates a lock that is gone.
--
-- KEYS  n locks   n fences
-- ARGV  1 n   2 token   3 ttl, ms   4 retention of the fences, ms
-- Returns 1 when renewed, 0 when the token does not hold all of them, or the lease that has taken its place
--
-- Invariants:
-- - writes with PEXPIRE alone, so that it works on a server that is out of memory;
-- - reads all the locks at once, where an ACL allows that: up to Redis 7.0, a server that tracks the script remembers all its
--   keys at each read in it, and with a read for each of a thousand locks it took 0.2 s.
local n = tonumber(ARGV[1])
local ok, held = pcall(redis.call, 'MGET', unpack(KEYS, 1, n))
for i = 1, n do
  if not held_by(ARGV[2], ok and held[i] or redis.call('GET', KEYS[i])) then return thief_of(ARGV[2], KEYS[i]) end
end
for i = 1, n do
  redis.call('PEXPIRE', KEYS[i], ARGV[3])
  redis.call('PEXPIRE', KEYS[n + i], ARGV[4])
end
-- Read last: a connection that tracks them is told of each later change.
return redis.call('EXISTS', unpack(KEYS, 1, n)) == n and 1 or 0
