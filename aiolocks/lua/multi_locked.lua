-- Tells whether a try now would be refused.
--
-- KEYS  locks
-- Returns 1 or 0
return redis.call('EXISTS', unpack(KEYS)) > 0 and 1 or 0
