-- Rings a bell of no waiter, so that the session that has just begun to listen for it finds out whether it is told.
--
-- KEYS  1 bell
-- ARGV  1 ttl of the bell, ms
-- Returns 1
--
-- Invariant: DEL comes first, so that the script works on a server that is out of memory: after such a write, the server
-- allows all others. The way in which a session hears must not depend on the memory that was free when it connected.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], '', 'PX', ARGV[1])
return redis.call('DEL', KEYS[1])
