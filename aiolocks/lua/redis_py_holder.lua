-- Tells the token of who has the lock.
--
-- KEYS  1 lock
-- Returns it, or nil
return redis.call('GET', KEYS[1])
