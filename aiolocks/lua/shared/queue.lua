-- The queue of those who wait: a sorted set of bells, each with a seat of 16 characters, by time of arrival.
--
-- Invariants:
-- - a bell is empty while it hangs, 'rung' from when its owner was woken until he hangs it up anew, and gone when he
--   is dead: nobody is passed over but the dead;
-- - ringing deletes the bell, which is what its owner hears, before it is put back as 'rung'.
local SEAT, BELL_TTL, QUEUE_TTL = 16, 2000, 10000
local NO_SEAT = string.rep('0', SEAT)  -- of a bell that has one entry only
local WALK = 64  -- so many of the queue are looked at in one step

local function has(flags, flag) return string.find(flags, flag, 1, true) ~= nil end

local function bell_of(queue, entry) return bell_in(queue, entry, SEAT) end

local function ring(bell)
  redis.call('DEL', bell)
  redis.call('SET', bell, 'rung', 'PX', BELL_TTL)
end

-- Whether who asks with these flags was told that there may be room, also if he does not know of it yet.
local function was_woken(flags, bell) return has(flags, 'p') or redis.call('GET', bell) == 'rung' end

-- The first living entry from a rank on, and the state of its bell; drops the dead ones before it.
local function living(queue, rank)
  while true do
    local entry = redis.call('ZRANGE', queue, rank, rank)[1]
    local bell = entry and bell_of(queue, entry)
    if not bell then return nil end
    local state = redis.call('GET', bell)
    if state then return entry, state end
    redis.call('ZREM', queue, entry)
  end
end

-- Takes a seat, or keeps the one that there is. Who has none yet gets a bell for as long as it takes him to hang it
-- up; who had one that is gone is not to believe that it still hangs.
local function sit_down(queue, bell, seat, first_time)
  redis.call('ZADD', queue, 'NX', whole(MICROSECONDS), bell .. seat)
  redis.call('PEXPIRE', queue, QUEUE_TTL)
  if first_time then redis.call('SET', bell, '', 'NX', 'PX', BELL_TTL) end
end

-- Gives up a seat of one's own, or the session's place and bell if it is `leaving`.
local function stand_up(queue, bell, seat, leaving)
  if leaving or seat ~= NO_SEAT then redis.call('ZREM', queue, bell .. seat) end
  if leaving then redis.call('DEL', bell) end
end
