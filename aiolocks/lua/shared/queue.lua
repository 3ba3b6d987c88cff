-- The queue of those who wait: a sorted set of bells, each with a seat of 16 characters, by time of arrival.
--
-- Invariants:
-- - a bell is empty while it hangs, 'rung' from when its owner was woken until it is refused or hangs it up again, and
--   gone when its owner is dead: nobody is passed over but the dead;
-- - ringing deletes the bell, which is what its owner hears, before it is put back as 'rung';
-- - while a waiter sits there with a seat of its own, no other one of its session takes their bell along.
local SEAT, BELL_TTL, QUEUE_TTL = 16, 2000, 10000
local NO_SEAT = string.rep('0', SEAT)  -- of a bell that has one entry only
local WALK = 64  -- the most entries of the queue that one step looks at

local function has(flags, flag) return string.find(flags, flag, 1, true) ~= nil end

local function bell_of(queue, entry) return bell_in(queue, entry, SEAT) end

local function ring(bell)
  redis.call('DEL', bell)
  redis.call('SET', bell, 'rung', 'PX', BELL_TTL)
end

-- Whether a waiter with these flags was told that there may be room, also if it does not know of it yet.
local function was_woken(flags, bell) return has(flags, 'p') or redis.call('GET', bell) == 'rung' end

-- The first living entry from a rank on, and the state of its bell; drops the dead ones before it.
local function first_living(queue, rank)
  while true do
    local entry = redis.call('ZRANGE', queue, rank, rank)[1]
    local bell = entry and bell_of(queue, entry)
    if not bell then return nil end
    local state = redis.call('GET', bell)
    if state then return entry, state end
    redis.call('ZREM', queue, entry)
  end
end

-- Whether nobody of another bell stands before that entry and lives, or before the end of the queue if it has no such
-- entry, nor anybody at all if its owner is not to wait. If not, and the first one has its bell: that one, which is
-- for its session to use or to give up. It passes as many of its own bell as a walk goes.
local function goes_first(queue, bell, entry, waits)
  local first = first_living(queue, 0)
  local other, rank = first, 0
  while other and other ~= entry and rank < WALK do
    if not waits or bell_of(queue, other) ~= bell then
      return false, waits and bell_of(queue, first) == bell and first or nil
    end
    rank = rank + 1
    other = first_living(queue, rank)
  end
  return true, nil
end

-- Takes a seat, or keeps the one that there is; the bell hangs from now on. One that hangs is left alone: after a write of
-- its own session, that would not hear it any more. Returns the bell if it did not hang, and its owner may believe
-- that it did (`had_bell`): then the owner must listen again.
local function enqueue(queue, bell, seat, had_bell)
  redis.call('ZADD', queue, 'NX', whole(MICROSECONDS), bell .. seat)
  redis.call('PEXPIRE', queue, QUEUE_TTL)
  if redis.call('GET', bell) == '' then return nil end
  redis.call('SET', bell, '', 'PX', BELL_TTL)
  return had_bell and bell or nil
end

-- Whether somebody has a seat with that bell, as far as a walk goes.
local function has_entry(queue, bell)
  for _, entry in ipairs(redis.call('ZRANGE', queue, 0, WALK - 1)) do
    if #entry == #bell + SEAT and string.sub(entry, 1, #bell) == bell then return true end
  end
  return redis.call('ZCARD', queue) > WALK
end

-- Gives up a seat of one's own. The bell goes with the last seat that lives by it: who asks does not know of those who
-- have sat down since. Without seats of their own, it is the session's place and bell, which go if it is `leaving`.
-- A waiter that is `alone` shares its bell with nobody.
local function dequeue(queue, bell, seat, leaving, alone)
  if seat == NO_SEAT and not leaving then return end
  local stood = redis.call('ZREM', queue, bell .. seat) == 1
  if not (stood or leaving) then return end
  if alone or seat == NO_SEAT or not has_entry(queue, bell) then redis.call('DEL', bell) end
end
