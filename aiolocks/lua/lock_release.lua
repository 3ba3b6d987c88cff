-- Frees the lock if the token holds it. The fence stays for its retention.
--
-- KEYS  1 lock   2 fence
-- ARGV  1 token   2 retention of the fence, ms
-- Returns 1 when freed, 0 when the token does not hold the lock
--
-- Invariant: writes with DEL and PEXPIRE alone, so that it works on a server that is out of memory.
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, #ARGV[1] + 1) ~= ARGV[1] .. ':' then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1
