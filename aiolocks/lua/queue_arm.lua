-- Takes a place at the end of the queues, or keeps those that it has, and hangs up the bell anew.
-- Alone in reading a key where changes to what was read are tracked: the bell, after it was written.
-- The queues are not in KEYS, for some servers take a read for a read of all of them; they share the bell's slot.
--
-- KEYS  1 bell
-- ARGV  1 ttl of the bell, ms   2 ttl of the queues, ms   3 seat, of several who share the bell   4… queues
-- Returns 1 when the bell hung there, 2 when it was rung meanwhile, 0 when it is new
--
-- Invariant: a queue is a sorted set of bells, each with its seat, by the server's time of their first arming; it
-- outlives them. A bell that hangs is empty.
local bell = KEYS[1]
local state = redis.call('GET', bell)
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
for i = 4, #ARGV do
  redis.call('ZADD', ARGV[i], 'NX', now, bell .. ARGV[3])
  redis.call('PEXPIRE', ARGV[i], ARGV[2])
end
redis.call('SET', bell, '', 'PX', ARGV[1])
redis.call('GET', bell)
return state and (state == '' and 1 or 2) or 0
