-- Takes a seat at the end of the queues, or keeps the seats that it has, and hangs up the bell again.
-- A connection with tracking is told of changes to a key that it has read: so the bell is read after it was written.
-- The queues are not in KEYS, for some servers take one read for a read of all KEYS; they are in the slot of the bell.
--
-- KEYS  1 bell
-- ARGV  1 ttl of the bell, ms   2 ttl of the queues, ms   3 seat, for waiters that share the bell
--       4 host and process of the session, JSON ('': not told)   5… queues
-- Returns 1 when the bell hung there, 2 when it was rung meanwhile, 0 when it is new
--
-- Invariants: a queue is a sorted set of bells, each with its seat, by the server's time of the first arming, which is the
-- same in all queues; a queue outlives its bells. A bell that hangs is empty. A session that finds its bell still hanging
-- writes its card, host and process, for people only: a short wait writes none. Only the ttl removes the card.
local bell = KEYS[1]
local state = redis.call('GET', bell)
local time = redis.call('TIME')
local since = time[1] * 1000000 + time[2]
for i = 5, #ARGV > 5 and #ARGV or 4 do
  -- The order is the same in all queues: else two waiters in the same two queues could wake each other for ever.
  since = math.min(since, tonumber(redis.call('ZSCORE', ARGV[i], bell .. ARGV[3]) or since))
end
since = string.format('%.0f', since)
for i = 5, #ARGV do
  redis.call('ZADD', ARGV[i], 'NX', since, bell .. ARGV[3])
  redis.call('PEXPIRE', ARGV[i], ARGV[2])
end
if state == '' and ARGV[4] ~= '' then
  local card = string.gsub(bell, '^([^{]*):', '%1.card:')
  redis.call('SET', card, ARGV[4], 'PX', ARGV[1])
end
redis.call('SET', bell, '', 'PX', ARGV[1])
redis.call('GET', bell)
return state and (state == '' and 1 or 2) or 0
