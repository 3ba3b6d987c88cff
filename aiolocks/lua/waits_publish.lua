-- Publishes the long waits of a session whose waiting tasks hold locks, and reads those of all sessions: a search for
-- deadlocks begins with these.
--
-- KEYS  1 waits
-- ARGV  1 record, JSON ('': there is none any more)   2 the record that this one replaces ('': none)   3 ms for which the
--       record counts   4 the most records that are read
-- Returns the records, the earliest published first
--
-- Invariant: waits is a sorted set of records by their end, ms; it ends with the last of them.
local waits = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _ = 1, ARGV[4] do
  local first = redis.call('ZRANGE', waits, 0, 0, 'WITHSCORES')
  if not first[1] or tonumber(first[2]) > now then break end
  redis.call('ZREM', waits, first[1])
end
if ARGV[2] ~= '' then redis.call('ZREM', waits, ARGV[2]) end
if ARGV[1] ~= '' then
  redis.call('ZADD', waits, string.format('%.0f', now + ARGV[3]), ARGV[1])
  redis.call('PEXPIRE', waits, ARGV[3])
end
return redis.call('ZRANGE', waits, 0, ARGV[4] - 1)
