-- Sets the ttl again for the token that holds the lock. Never creates a lock that is gone.
--
-- KEYS  1 lock   2 fence
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms
-- Returns 1 when renewed, 0 when the token does not hold the lock, or the lease that has taken its place
--
-- Invariants:
-- - writes with PEXPIRE alone, so that it works on a server that is out of memory;
-- - ends in a read of the lock key, so that a connection that tracks it is told of each later change.
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, #ARGV[1] + 1) ~= ARGV[1] .. ':' then return thief_of(ARGV[1]) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return redis.call('GET', KEYS[1]) and 1 or 0
