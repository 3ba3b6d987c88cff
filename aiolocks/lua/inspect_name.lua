-- Reads what stands under a name, whatever that is, and counts those who wait there and live. Writes nothing.
--
-- KEYS  1 queue   2… the others of the name
-- ARGV  1 how many characters stand behind the bell in an entry of the queue   2 tells no content ('1')
-- Returns {the server's time in microseconds, how many wait (-1: that is no queue),
--          and of each of the others {type, ttl in ms (-1: it has none), content}}
--
-- The content of a string is itself; of a hash, fields and values; of a sorted set, members and scores; of others,
-- nothing.
local function type_of(key) return redis.call('TYPE', key).ok end

local waiting, type = 0, type_of(KEYS[1])
if type == 'zset' then
  for _, entry in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    waiting = waiting + redis.call('EXISTS', string.sub(entry, 1, -ARGV[1] - 1))
  end
elseif type ~= 'none' then
  waiting = -1
end

local time = redis.call('TIME')
local found = {string.format('%.0f', time[1] * 1000000 + time[2]), waiting}
for i = 2, #KEYS do
  local content
  type = type_of(KEYS[i])
  if ARGV[2] == '1' then
    content = {}
  elseif type == 'string' then
    content = redis.call('GET', KEYS[i])
  elseif type == 'hash' then
    content = redis.call('HGETALL', KEYS[i])
  elseif type == 'zset' then
    content = redis.call('ZRANGE', KEYS[i], 0, -1, 'WITHSCORES')
  end
  found[i + 1] = {type, redis.call('PTTL', KEYS[i]), content or {}}
end
return found
