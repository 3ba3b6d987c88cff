-- Functions for locks that share their name space with the simple lock, and so have its keys: the lock key is
-- 'token:fencing token:metadata', the queue a sorted set of bells. Ringing deletes a bell, and leaves its entry in the queue.

-- The value of the lock key if the token holds it, or nil.
local function held_by(token, held)
  if held and string.sub(held, 1, #token + 1) == token .. ':' then return held end
  return nil
end

-- The value of the lock key, also of a lock that is kept without a holder (see lock_release). Rejects a foreign value.
local function known(lock, held)
  if held and not is_token(string.match(held, '^(%x+):%d+:') or '') then reject_foreign(lock) end
  return held
end

local function minted_in(held) return string.match(held, ':(%d+):') end

-- Wakes the first waiter in the queue that has a bell, or the first one after `bell`. Drops the entries before it, which have
-- no bell: their owners are dead or were woken already. A waiter that this step has woken for another lock is about to ask:
-- its entry stays, and no other waiter is woken. The bells are not in KEYS: the queue names them, and they share its slot.
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

-- Passes on a wakeup that the owner of `bell` cannot use, in each of these queues. Adds the bells that it rings to `rung`.
--
-- Invariant: a wakeup goes to later waiters only, and so comes to an end. A waiter that had a seat in a queue (`had_seat`) and
-- has lost it was passed over there by another wakeup, which went on to later waiters. This step then gives the waiter a seat
-- at the end. Passed on from the first waiter again, wakeups would go round the queue while another lock is held.
local function pass_wakeup_on(queues, bell, rung, had_seat)
  for _, queue in ipairs(queues) do
    if not had_seat or redis.call('ZSCORE', queue, bell) then rung[#rung + 1] = wake(queue, bell) end
  end
end
