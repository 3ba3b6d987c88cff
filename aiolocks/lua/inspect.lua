-- Names of every family, as an operator looks at them.

--# inspect_names
-- Reads all keys of some names of one kind, and the waiters there with a living bell. Writes nothing.
--
-- KEYS  for each name: its queue, then the other keys of the name
-- ARGV  1 number of keys of a name   2 number of characters after the bell in an entry of the queue
--       3 for how many of the other keys of a name, from the first on, it tells any content; for later ones only that of
--       a string   4 for how many waiters of a name it tells time and card
-- Returns {the server's time in microseconds, for each name {number of waiters (-1: that is no queue of bells),
--          {for each of the first waiters: since when in microseconds, its card ('': there is none)},
--          for each of the other keys {type, ttl in ms (-1: it has none), content}}}
--
-- The content of a string is its value; of a hash, fields and values; of a sorted set, members and scores; of another
-- type, nothing. Bells and cards are not in KEYS: the queue names the bells, each card is named after its bell, and all share
-- one slot.
local function type_of(key) return redis.call('TYPE', key).ok end

local function waiters_of(queue)
  local type = type_of(queue)
  if type ~= 'zset' then return type == 'none' and 0 or -1, {} end
  local number, told = 0, {}
  local entries = redis.call('ZRANGE', queue, 0, -1, 'WITHSCORES')
  for i = 1, #entries, 2 do
    local bell = bell_in(queue, entries[i], ARGV[2])
    if not bell then return -1, {} end
    if redis.call('EXISTS', bell) == 1 then
      number = number + 1
      if number <= tonumber(ARGV[4]) then
        local card = string.gsub(bell, '^([^{]*):', '%1.card:')
        told[#told + 1] = entries[i + 1]
        told[#told + 1] = type_of(card) == 'string' and redis.call('GET', card) or ''
      end
    end
  end
  return number, told
end

local function content_of(key, type, in_full)
  if type == 'string' then return redis.call('GET', key) end
  if not in_full then return {} end
  if type == 'hash' then return redis.call('HGETALL', key) end
  if type == 'zset' then return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
  return {}
end

local time, keys_per_name = redis.call('TIME'), tonumber(ARGV[1])
local found = {string.format('%.0f', time[1] * 1000000 + time[2])}
for i = 1, #KEYS, keys_per_name do
  local name = {waiters_of(KEYS[i])}
  for j = i + 1, i + keys_per_name - 1 do
    local type = type_of(KEYS[j])
    name[#name + 1] = {type, redis.call('PTTL', KEYS[j]), content_of(KEYS[j], type, j - i <= tonumber(ARGV[3]))}
  end
  found[#found + 1] = name
end
return found
