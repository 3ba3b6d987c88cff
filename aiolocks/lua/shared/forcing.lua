-- The keys that an operator frees, whoever holds them.
--
-- ARGV of every step   1 a fencing token: a later grant belongs to a holder that has come since
--
-- Invariant: said again, it frees nobody else. A value without a fencing token was written by nobody who could rely on
-- it.
local BELL_TTL, SUMMONED = 2000, 16

local function type_of(key) return redis.call('TYPE', key).ok end

local function is_due(minted) return not minted or tonumber(minted) <= tonumber(ARGV[1]) end

-- Removes keys that are not of this type; how many that were.
local function discard(type, ...)
  local discarded = 0
  for _, key in ipairs({...}) do
    local found = type_of(key)
    if found ~= type and found ~= 'none' then discarded = discarded + redis.call('DEL', key) end
  end
  return discarded
end

-- Removes a fence that was written by nobody who mints.
local function discard_fence(fence)
  discard('string', fence)
  local last = redis.call('GET', fence) or '0'
  if not string.find(last, '^%d+$') or tonumber(last) >= 9007199254740991 then redis.call('DEL', fence) end
end

-- Wakes the first of those who wait and live, and drops the dead before them. More than one: who may enter depends on
-- the kind, and a waiter that may not hangs up its bell again. The bells are not in KEYS: they stand in the queue, and
-- share its slot. `seat`: how many characters follow one; `stays`: a bell that was rung stays, as 'rung'.
local function summon(queue, seat, stays)
  discard('zset', queue)
  local rung = {}
  while #rung < SUMMONED do
    local entry = redis.call('ZRANGE', queue, #rung, #rung)[1]
    if not entry then break end
    local bell = bell_in(queue, entry, seat)
    if bell and redis.call('DEL', bell) == 1 then
      if stays then redis.call('SET', bell, 'rung', 'PX', BELL_TTL) end
      rung[#rung + 1] = bell
    else
      redis.call('ZREM', queue, entry)
    end
  end
  return rung
end
