-- A helper of these tests: a waiter has a seat at the end of the queues, or keeps those that it has, and its bell hangs,
-- as after a refusal. A connection that tracks what it reads is told of the end of that bell.
--
-- KEYS  1 bell
-- ARGV  1 ttl of the bell, ms   2 ttl of the queues, ms   3 seat, for waiters that share the bell
--       4 the card of its session ('': none)   5… queues
local bell = KEYS[1]
local time = redis.call('TIME')
local since = string.format('%.0f', time[1] * 1000000 + time[2])
for i = 5, #ARGV do
  redis.call('ZADD', ARGV[i], 'NX', since, bell .. ARGV[3])
  redis.call('PEXPIRE', ARGV[i], ARGV[2])
end
if ARGV[4] ~= '' then
  local card = string.gsub(bell, '^([^{]*):', '%1.card:')
  redis.call('SET', card, ARGV[4], 'PX', ARGV[1])
end
redis.call('SET', bell, '', 'PX', ARGV[1])
redis.call('GET', bell)
