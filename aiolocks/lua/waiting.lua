-- Waiters of every family: they listen, try out how bells are heard, and publish long waits.

--# listening
-- Listening: a waiter hears when it must ask again, and does not ask until then.
--
-- A bell is empty while it hangs, and 'rung' or gone after its owner was woken. Each session says at short intervals that
-- its waiters live; the answer tells each waiter for how long it need not ask.
--
-- Invariants:
-- - no waiter is silent while the lock is free or the lease has ended. It must ask if there is no lock and no deadline, if
--   the waiter right before it has died, or if the lock belongs to the owner for which it waits;
-- - a waiter with a seat of its own, in one queue, does not get in before the waiter right before it: if that one was rung, it
--   asks when that bell ends;
-- - marks of other waiters do not keep a waiter silent that is the first in its queues: only a lease may be in its way;
-- - no bell or seat is created here, and a bell that was rung keeps its ttl: its owner either comes or is dead;
-- - a bell or seat is told to be gone only after a write of the same sort that the server has allowed: then it can be made
--   again. Else the error of that write is the answer, and the waiter does not ask and listen again and again;
-- - a waiter without a bell is removed only from queues where a rung bell stays for a while: there, that waiter is dead;
-- - a bell lasts longer only while its waiter stands far from the front of all its queues, and has no marks: these keep other
--   waiters out for as long as they last, wherever their owner stands.
local SLACK = 1000  -- ms that keys outlast their entries, so that a step finds that these have ended
local GONE, RUNG, ASK, NO_END = -4, -3, -2, -1

-- Keeps the keys of the waiter with this bell and seat. Returns for how many ms it need not ask, or a number from above; and
-- whether it stands far from the front.
local function listen(bell, seat, owner, queues, locks, deadlines, marks, beside, marks_ms)
  local state = redis.call('GET', bell)
  if state == 'rung' then return RUNG end
  if not state then
    redis.call('DEL', bell)  -- changes nothing: it shows that the server takes writes
    return GONE
  end
  local asks, is_first, ends, held, awaits_other = false, true, nil, 0, false
  local far = ARGV[4] ~= '' and not marks[1]
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
      if lives == 'rung' then  -- by then, it has either come or is dead
        ends, awaits_other = redis.call('PTTL', before), not queues[2] and string.find(seat, '[^0]') ~= nil
      end
      if lives then break end
      redis.call('ZREM', queue, entry)
      asks, rank = true, rank - 1
    end
    is_first = is_first and rank == 0
    far = far and rank >= tonumber(ARGV[4])
  end
  if marks[1] then
    if not redis.call('ZSCORE', marks[1], bell) then asks = true end
    redis.call('ZADD', marks[1], 'XX', whole(NOW + marks_ms), bell)
    for _, key in ipairs(marks) do keep(key, marks_ms + SLACK) end
  end
  for _, key in ipairs(beside) do
    if redis.call('PEXPIRE', key, ARGV[2]) == 0 then asks = true end
  end
  local lasts = far and ARGV[5] or ARGV[1]
  if ARGV[3] ~= '' then
    local card = string.gsub(bell, '^([^{]*):', '%1.card:')
    redis.call('SET', card, ARGV[3], 'PX', lasts)
  end
  redis.call('PEXPIRE', bell, lasts)
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
  if asks or held == 0 and not awaits_other then return ASK, far end
  return ends or NO_END, far
end

--# waiters_listen
-- Says for each of these bells that its owner lives, and tells that owner for how long it need not ask.
-- It creates no bell or seat: a waiter whose bell or seat is gone is told so, and takes its seat again by itself.
-- A connection with tracking is told of changes to a key that it has read: so each bell is read after it was written. It
-- may be told of the other keys that are read, too: a waiter that listens ignores that. These keys are not in KEYS, for
-- some servers take one read for a read of all KEYS.
--
-- KEYS  bells
-- ARGV  1 ttl of a bell, ms   2 ttl of a queue, ms   3 host and process of the session, JSON ('': not told)
--       4 how many waiters at the front of a queue are near it ('': all)   5 ttl of the bell of any other waiter, ms
--       and then for each bell: its seat; its owner, whose locks are not in its way, or ''; the numbers of its queues, locks,
--       sets of deadlines, keys of marks, and keys beside them, which last as long as queues; the ttl of the marks, ms;
--       and all these keys
-- Returns for each bell: ms until the first lease ends that may be in its way, -1 when none has an end, -2 when its owner
-- must ask now, -3 when the bell was rung, -4 when bell or seat are gone, -5 when the server refuses what is done with
-- them, as where another program has written there, or where it takes no writes; and behind these answers the numbers of
-- the bells, from 1 on, whose waiter stands far from the front
--
-- Invariant: an error with one bell changes the answer for that bell only.
local at = 6
local function keys_of(number)
  local keys = {}
  for i = 1, tonumber(number) do
    keys[i] = ARGV[at]
    at = at + 1
  end
  return keys
end

local answers, far = {}, {}
for i, bell in ipairs(KEYS) do
  local seat, owner, queues, locks, deadlines, marks, beside, ms = unpack(ARGV, at, at + 7)
  at = at + 8
  local ok, answer, is_far = pcall(
    listen, bell, seat, owner, keys_of(queues), keys_of(locks), keys_of(deadlines), keys_of(marks), keys_of(beside),
    tonumber(ms)
  )
  answers[i] = ok and answer or -5
  if ok and is_far then far[#far + 1] = i end
end
for _, number in ipairs(far) do answers[#answers + 1] = number end
return answers

--# bell_try
-- Rings a bell of no waiter, so that the session that has just begun to listen for it finds out whether it is told.
--
-- KEYS  1 bell
-- ARGV  1 ttl of the bell, ms
-- Returns 1
--
-- Invariant: DEL comes first, so that the script works on a server that is out of memory: after such a write, the server
-- allows all others. The way in which a session hears must not depend on the memory that was free when it connected.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], '', 'PX', ARGV[1])
return redis.call('DEL', KEYS[1])

--# waits_publish
-- Publishes the long waits of a session whose waiting tasks hold locks, and reads those of all sessions: a search for
-- deadlocks begins with these.
--
-- KEYS  1 waits
-- ARGV  1 record, JSON ('': there is none any more)   2 the record that this one replaces ('': none)   3 ms for which the
--       record counts   4 the most records that are read
-- Returns the records, the earliest published first
--
-- Invariant: waits is a sorted set of records by their end, ms; it ends with the last of them.
local waits = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _ = 1, ARGV[4] do
  local first = redis.call('ZRANGE', waits, 0, 0, 'WITHSCORES')
  if not first[1] or tonumber(first[2]) > now then break end
  redis.call('ZREM', waits, first[1])
end
if ARGV[2] ~= '' then redis.call('ZREM', waits, ARGV[2]) end
if ARGV[1] ~= '' then
  redis.call('ZADD', waits, string.format('%.0f', now + ARGV[3]), ARGV[1])
  redis.call('PEXPIRE', waits, ARGV[3])
end
return redis.call('ZRANGE', waits, 0, ARGV[4] - 1)
