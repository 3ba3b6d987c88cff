-- Listening: a waiter hears when it must ask again, and does not ask until then.
--
-- A bell is empty while it hangs, and 'rung' or gone after its owner was woken. Each session says at short intervals that
-- its waiters live; the answer tells each waiter for how long it need not ask.
--
-- Invariants:
-- - no waiter is silent while the lock is free or the lease has ended. It must ask if there is no lock and no deadline, if
--   the waiter right before it has died, or if the lock belongs to the owner for which it waits;
-- - marks of other waiters do not keep a waiter silent that is the first in its queues: only a lease may be in its way;
-- - no bell or seat is created here, and a bell that was rung keeps its ttl: its owner either comes or is dead;
-- - a bell or seat is told to be gone only after a write of the same sort that the server has allowed: then it can be made
--   again. Else the error of that write is the answer, and the waiter does not ask and listen again and again;
-- - a waiter without a bell is removed only from queues where a rung bell stays for a while: there, that waiter is dead.
local SLACK = 1000  -- ms that keys outlast their entries, so that a step finds that these have ended
local GONE, RUNG, ASK, NO_END = -4, -3, -2, -1

-- Keeps the keys of the waiter with this bell and seat. Returns for how many ms it need not ask, or a number from above.
local function listen(bell, seat, owner, queues, locks, deadlines, marks, beside, marks_ms)
  local state = redis.call('GET', bell)
  if state == 'rung' then return RUNG end
  if not state then
    redis.call('DEL', bell)  -- changes nothing: it shows that the server takes writes
    return GONE
  end
  local asks, is_first, ends, held = false, true, nil, 0
  for _, queue in ipairs(queues) do
    redis.call('PEXPIRE', queue, ARGV[2])
    local rank = redis.call('ZRANK', queue, bell .. seat)
    if not rank then
      redis.call('ZADD', queue, 'XX', 0, bell .. seat)  -- as above; an ACL may deny ZADD
      return GONE
    end
    while #deadlines > 0 and rank > 0 do
      local entry = redis.call('ZRANGE', queue, rank - 1, rank - 1)[1]
      local before = bell_in(queue, entry, #seat)
      local lives = not before or redis.call('GET', before)
      if lives == 'rung' then ends = redis.call('PTTL', before) end  -- by then, it has either come or is dead
      if lives then break end
      redis.call('ZREM', queue, entry)
      asks, rank = true, rank - 1
    end
    is_first = is_first and rank == 0
  end
  if marks[1] then
    if not redis.call('ZSCORE', marks[1], bell) then asks = true end
    redis.call('ZADD', marks[1], 'XX', whole(NOW + marks_ms), bell)
    for _, key in ipairs(marks) do keep(key, marks_ms + SLACK) end
  end
  for _, key in ipairs(beside) do
    if redis.call('PEXPIRE', key, ARGV[2]) == 0 then asks = true end
  end
  if ARGV[3] ~= '' then
    local card = string.gsub(bell, '^([^{]*):', '%1.card:')
    redis.call('SET', card, ARGV[3], 'PX', ARGV[1])
  end
  redis.call('PEXPIRE', bell, ARGV[1])
  redis.call('GET', bell)  -- a write ends the server's tracking of the bell, and a read after it begins that again

  for _, lock in ipairs(locks) do
    local left = redis.call('PTTL', lock)
    if left ~= -2 then held = held + 1 end
    if left >= 0 then ends = math.max(ends or 0, left) end
    if owner ~= '' and string.sub(redis.call('GET', lock) or '', 1, #owner + 1) == owner .. ':' then asks = true end
  end
  for _, key in ipairs(deadlines) do
    local first = not (is_first and key == marks[1]) and redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    if first then
      held = held + 1
      ends = math.min(ends or math.huge, math.max(0, first - NOW))
    end
  end
  if asks or held == 0 then return ASK end
  return ends or NO_END
end
