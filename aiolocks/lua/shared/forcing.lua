-- Frees keys for an operator, whichever token holds them.
--
-- ARGV of every step   1 the latest fencing token that it frees: a later grant belongs to a newer holder
--       3 the mark for the holders: a lease of nobody, which tells who has freed it; '' or absent: none
--
-- Invariants:
-- - sent again, it frees no newer holder. It also frees a value without a fencing token, which aiolocks never writes;
-- - the mark is written after its holder was freed: out of memory, or without the permission, that is done all the same.
local BELL_TTL, SUMMONED = 2000, 16
local NOBODY = string.rep('0', 32)
local UNKNOWN_TTL = 60000  -- ms that a mark lasts where the key has lost its ttl

-- Leaves the mark for the holder with this token, if it is one, with the fencing token of the lease that it had: the next
-- lease of the same token has a later one. `left`: the ms that its key had left.
local function tell(token, minted, left)
  if (ARGV[3] or '') == '' or not minted or string.find(token, NOBODY, 1, true) == 1 then return end
  local mark = string.gsub(ARGV[3], '^(%x+):%d+:', '%1:' .. minted .. ':')
  pcall(leave_mark, token, mark, left < 0 and UNKNOWN_TTL or left)
end

local function type_of(key) return redis.call('TYPE', key).ok end

local function is_due(minted) return not minted or tonumber(minted) <= tonumber(ARGV[1]) end

-- Deletes the keys that are not of this type. Returns the number of them.
local function discard(type, ...)
  local discarded = 0
  for _, key in ipairs({...}) do
    local found = type_of(key)
    if found ~= type and found ~= 'none' then discarded = discarded + redis.call('DEL', key) end
  end
  return discarded
end

-- Deletes a fence with a value that is no fencing token.
local function discard_fence(fence)
  discard('string', fence)
  local last = redis.call('GET', fence) or '0'
  if not string.find(last, '^%d+$') or tonumber(last) >= 9007199254740991 then redis.call('DEL', fence) end
end

-- Wakes the first SUMMONED living waiters, and drops the dead ones before them. It wakes several: the kind decides which of
-- them may enter, and the others hang up their bells again. The bells are not in KEYS: the queue names them, and they share
-- its slot. `seat`: how many characters follow a bell; `stays`: a bell that was rung stays, as 'rung'.
local function wake_first(queue, seat, stays)
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
