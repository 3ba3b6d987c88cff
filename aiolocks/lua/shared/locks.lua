-- Locks that share their name space with the simple lock, and so keep its keys: the lock key is
-- 'token:fencing token:metadata', the queue a sorted set of bells, which are gone once they were rung.

-- The value of the lock key if the token holds it, or nil.
local function held_by(token, held)
  if held and string.sub(held, 1, #token + 1) == token .. ':' then return held end
  return nil
end

-- The same, whoever holds it, and also where nobody does for a while.
local function known(lock, held)
  if held and not is_token(string.match(held, '^(%x+):%d+:') or '') then reject_foreign(lock) end
  return held
end

local function minted_in(held) return string.match(held, ':(%d+):') end

-- Wakes the first in the queue whose bell hangs, or the first behind `bell`; those without one are dead or were woken
-- already. One that was rung in this step, for another lock, is on its way and stays where it is.
-- The bells are not in KEYS: they stand in the queue, and share its slot.
local woken = {}
local function wake(queue, bell)
  local rank = bell and redis.call('ZRANK', queue, bell)
  rank = rank and rank + 1 or 0
  while true do
    local entry = redis.call('ZRANGE', queue, rank, rank)[1]
    local next = entry and bell_in(queue, entry, 0)
    if not next or woken[next] then return nil end
    if redis.call('DEL', next) == 1 then
      woken[next] = true
      return next
    end
    redis.call('ZREM', queue, next)
  end
end

-- Passes on a wakeup that the owner of `bell` cannot use, in each of these queues; adds the bells to `rung`.
--
-- Invariant: a wakeup goes to those behind, and so comes to an end. A waiter that had a place in a queue (`seated`) and has
-- lost it was passed over there by another wakeup, which went on to those behind, and is about to sit down at the end: from
-- the first again, wakeups would follow each other round the queue for as long as somebody holds what those in it lack.
local function pass_on(queues, bell, rung, seated)
  for _, queue in ipairs(queues) do
    if not seated or redis.call('ZSCORE', queue, bell) then rung[#rung + 1] = wake(queue, bell) end
  end
end
