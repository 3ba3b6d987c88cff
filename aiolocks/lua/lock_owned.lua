-- Tells whether the token holds the lock.
--
-- KEYS  1 lock
-- ARGV  1 token
-- Returns 1 or 0
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, #ARGV[1] + 1) ~= ARGV[1] .. ':' then return 0 end
return 1
