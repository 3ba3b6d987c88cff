-- The queue of waiters: a sorted set of bells, each with a seat of 16 characters after it, by time of arrival.
--
-- Invariants:
-- - a bell is empty while it hangs. It is 'rung' after its owner was woken, until the owner is refused or hangs it up
--   again. It is gone if its owner is dead: a step passes over no waiter but a dead one;
-- - a step that rings a bell first deletes it, and its owner hears that; then the step writes it again, as 'rung';
-- - while a waiter has a seat of its own in the queue, no other waiter of its session deletes their bell.
local SEAT, BELL_TTL, QUEUE_TTL = 16, 2000, 10000
local NO_SEAT = string.rep('0', SEAT)  -- of a bell that has only one entry
local WALK = 64  -- the most entries of the queue that one step looks at

local function has(flags, flag) return string.find(flags, flag, 1, true) ~= nil end

local function bell_of(queue, entry) return bell_in(queue, entry, SEAT) end

local function ring(bell)
  redis.call('DEL', bell)
  redis.call('SET', bell, 'rung', 'PX', BELL_TTL)
end

-- Whether the owner of the bell was woken: its flags say so, or its bell was rung and the owner may not know of it yet.
local function was_woken(flags, bell) return has(flags, 'p') or redis.call('GET', bell) == 'rung' end

-- The first entry of a living waiter from this rank on, and the state of its bell. Removes dead entries before it.
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

-- Whether no living waiter with another bell is before this entry, or in the queue if the entry is not in it; without
-- `waits`, whether no other living waiter is. If false, and `waits`, and the first waiter has this bell: also the entry
-- of that waiter, for its session to use or to give up. It looks at no more than WALK entries.
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

-- When a waiter that sits down now has come, microseconds: after all that wait, also if the clock was set back since then.
local function arrival(queue)
  return math.max(MICROSECONDS, (redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0) + 1)
end

-- Takes a seat, or keeps the seat that there is; the bell hangs from now on. A bell that hangs already is not written: a
-- session does not hear a bell any more after its own write to it. Returns the bell if it was rung, perhaps for another
-- waiter of its session, or is gone although its owner may believe that it hangs (`had_bell`): then the owner must listen
-- again.
local function enqueue(queue, bell, seat, had_bell)
  redis.call('ZADD', queue, 'NX', whole(arrival(queue)), bell .. seat)
  redis.call('PEXPIRE', queue, QUEUE_TTL)
  local state = redis.call('GET', bell)
  if state == '' then return nil end
  redis.call('SET', bell, '', 'PX', BELL_TTL)
  return (had_bell or state) and bell or nil
end

-- Whether an entry of the queue has this bell. In a queue longer than WALK, another one may have it: then it is true.
local function has_entry(queue, bell)
  for _, entry in ipairs(redis.call('ZRANGE', queue, 0, WALK - 1)) do
    if #entry == #bell + SEAT and string.sub(entry, 1, #bell) == bell then return true end
  end
  return redis.call('ZCARD', queue) > WALK
end

-- Removes a seat, and with the last seat of a bell the bell: the caller does not know of seats that were taken meanwhile.
-- Waiters without seats of their own have one entry and one bell in common, and both are removed if `leaving`.
-- A waiter that is `alone` shares its bell with no other waiter.
local function dequeue(queue, bell, seat, leaving, alone)
  if seat == NO_SEAT and not leaving then return end
  local stood = redis.call('ZREM', queue, bell .. seat) == 1
  if not (stood or leaving) then return end
  if alone or seat == NO_SEAT or not has_entry(queue, bell) then redis.call('DEL', bell) end
end
