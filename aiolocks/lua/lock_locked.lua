-- Tells whether a try now would be refused.
--
-- KEYS  1 lock
-- Returns 1 or 0
return redis.call('EXISTS', KEYS[1])
