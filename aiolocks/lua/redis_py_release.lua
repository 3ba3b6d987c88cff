-- Frees the lock if it has this token, as redis-py does.
--
-- KEYS  1 lock
-- ARGV  1 token
-- Returns 1 when freed, 0 when the lock does not have this token
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
return 1
