-- Takes a place at the end of the queue, or keeps the one that it has, and hangs up the bell anew.
-- Alone in reading a key where changes to what was read are tracked: the bell, after it was written.
--
-- KEYS  1 queue   2 bell
-- ARGV  1 ttl of the bell, ms   2 ttl of the queue, ms
-- Returns 1 when the bell stood, 0 when it was rung meanwhile, or is new
--
-- Invariant: the queue is a sorted set of bells by the server's time of their first arming; it outlives them.
local stood = redis.call('EXISTS', KEYS[2])
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], 'NX', string.format('%.0f', time[1] * 1000000 + time[2]), KEYS[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], '', 'PX', ARGV[1])
redis.call('GET', KEYS[2])
return stood
