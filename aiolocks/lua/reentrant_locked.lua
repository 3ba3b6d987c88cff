-- Tells whether a try of that owner now would be refused.
--
-- KEYS  1 lock
-- ARGV  1 owner
-- Returns 1 or 0
local held = redis.call('GET', KEYS[1])
return held and not held_by(ARGV[1], held) and 1 or 0
