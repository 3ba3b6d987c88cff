-- Rings a bell of nobody, so that the session which has just begun to listen for it finds out whether it is told.
--
-- KEYS  1 bell
-- ARGV  1 ttl of the bell, ms
-- Returns 1
--
-- Invariant: DEL goes first, so that it works on a server that is out of memory: what a script writes behind such a write
-- is allowed as well. How sessions hear must not depend on how much memory there was when they connected.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], '', 'PX', ARGV[1])
return redis.call('DEL', KEYS[1])
