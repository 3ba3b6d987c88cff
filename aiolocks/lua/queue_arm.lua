-- Takes a place at the end of the queue, or keeps the one that it has, and hangs up the bell anew.
-- Alone in reading a key where changes to what was read are tracked: the bell, after it was written.
-- The queue is not in KEYS, for some servers take a read for a read of all of them; it shares the bell's slot.
--
-- KEYS  1 bell
-- ARGV  1 queue   2 ttl of the bell, ms   3 ttl of the queue, ms
-- Returns 1 when the bell stood, 0 when it was rung meanwhile, or is new
--
-- Invariant: the queue is a sorted set of bells by the server's time of their first arming; it outlives them.
local bell, queue = KEYS[1], ARGV[1]
local stood = redis.call('EXISTS', bell)
local time = redis.call('TIME')
redis.call('ZADD', queue, 'NX', string.format('%.0f', time[1] * 1000000 + time[2]), bell)
redis.call('PEXPIRE', queue, ARGV[3])
redis.call('SET', bell, '', 'PX', ARGV[2])
redis.call('GET', bell)
return stood
