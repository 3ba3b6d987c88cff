-- Adds to the ttl of the lock if it has this token, or replaces it, as redis-py does. A lock without a ttl stays without one.
--
-- KEYS  1 lock
-- ARGV  1 token   2 time, ms   3 replace the ttl ('1') or add to it ('0')
-- Returns 1 when done, 0 when the lock does not have this token, or has no ttl
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local left = redis.call('PTTL', KEYS[1])
if left < 0 then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[3] == '0' and ARGV[2] + left or ARGV[2])
return 1
