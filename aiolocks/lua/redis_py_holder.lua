-- Tells the token of the holder.
--
-- KEYS  1 lock
-- Returns the token, or nil
return redis.call('GET', KEYS[1])
