-- Simple locks, and the votes of a Redlock: one string, its holder.

--# locks
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

--# lock_straight
-- Before lock_release: frees a lock for which nobody waits, without the functions that are made for what follows.
--
-- Invariant: it does what lock_release would do, or nothing. A queue that is no queue is for lock_release to tell.
if not KEYS[4] and not ARGV[4] then
  local held = redis.call('GET', KEYS[1])
  if held and string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. ':'
      and (ARGV[3] ~= '1' or redis.pcall('ZCARD', KEYS[3]) == 0) then
    redis.call('PEXPIRE', KEYS[2], ARGV[2])
    redis.call('DEL', KEYS[1])
    return {1}
  end
end

--# lock_acquire
-- Takes the lock, or tells how long its holder may keep it; a refused asker that will wait then gets a seat.
-- Sent again with the token that already holds the lock, it is the same grant with a new ttl.
--
-- KEYS  1 lock   2 fence   3 queue   4 bell (only from an asker that will wait)
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 flags: t only in turn, w will wait if
--       refused, q has asked before and may have a bell, l leaves the queue, h is told of the holder, if refused, e will wait
--       for the answer of a session that keeps it, and no longer
-- Returns {1, fencing token, number of others in the queue}
--      or {0, remaining ms of the holder (-1: it has no ttl; -2: the lock is free, and another's turn; -5: a session that
--          keeps it was asked, and no other waiter is before a single try)[, the holder][, its own bell, if that was gone]};
--          the holder: {the server's time, microseconds; ''; '', remaining ms, the lock key}
--
-- Invariants: the lock key is 'token:fencing token:metadata', always with a ttl; the fence is at least every fencing
-- token that was granted under this name while it was kept; when a refusal is written, its waiter has a seat, and its bell
-- hangs. A bell that hangs is not written again: after its own write, a session would not be told that the bell is rung.
local lock, fence, queue, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, ttl, retention, flags, BELL_TTL, QUEUE_TTL = ARGV[1], ARGV[2], ARGV[3], ARGV[5], 2000, 10000
local FIRST_ASK = 'wh'  -- with these flags there is no other to look for; nor are functions made that a grant needs not

-- A value without the form that aiolocks gives it was written by another program: the error is 'FOREIGN' and the key's number.
local held = redis.call('GET', lock)
local others = redis.call('ZCARD', queue)  -- read before anything is written
local first = others > 0 and redis.call('ZRANGE', queue, 0, 0)[1]
if first and not string.find(first, '.bell.', 1, true) then return redis.error_reply('FOREIGN 3') end
local mine = held and string.sub(held, 1, #token + 1) == token .. ':'
if held and not mine then
  local holder = string.match(held, '^(%x+):%d+:')
  if not holder or #holder % 32 ~= 0 then return redis.error_reply('FOREIGN 1') end
end
if held and not mine or not held and first and first ~= bell and string.find(flags, 't', 1, true) then
  local function has(flag) return string.find(flags, flag, 1, true) end
  -- Microseconds since 1970 are below 2^53 until 2255, and so exact in a double; only %.0f prints them in full.
  local function now() local time = redis.call('TIME') return time[1] * 1000000 + time[2] end
  local function whole(number) return string.format('%.0f', number) end
  local reply = {0, held and redis.call('PTTL', lock) or -2}
  if held and has('h') then reply[3] = {whole(now()), '', '', reply[2], held} end
  -- As `recall` does it, see there.
  local head, mark, rest = string.match(held or '', '^(%x+:%d+:{"cache":)([1-4])(.*)$')
  if mark == '1' then
    redis.call('PEXPIRE', queue, QUEUE_TTL)
    redis.call('SET', lock, head .. ((not has('w') or has('e')) and '4' or '2') .. rest, 'KEEPTTL')
  end
  if mark and mark ~= '3' and (not first or first == bell) and (not has('w') or has('e')) then reply[2] = -5 end
  if not has('w') then return reply end
  local hangs = redis.call('GET', bell) == ''
  redis.pcall('PEXPIRE', queue, QUEUE_TTL)  -- allowed out of memory; then so are later writes
  -- After all that wait, also if the clock was set back since they came.
  local arrival = math.max(now(), (redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0) + 1)
  redis.pcall('ZADD', queue, 'NX', whole(arrival), bell)
  redis.pcall('PEXPIRE', queue, QUEUE_TTL)
  if not hangs then redis.pcall('SET', bell, '', 'PX', BELL_TTL) end
  if not hangs and has('q') then reply[#reply + 1] = bell end
  return reply
end
local minted = held and string.match(held, ':(%d+):')
if mine then
  redis.call('PEXPIRE', lock, ttl)
  redis.call('PEXPIRE', fence, retention)
else
  -- A fencing token is at least the server's time, so that after a lost fence (restart, eviction) none begins again at 1.
  local last = redis.call('GET', fence) or '0'  -- nothing beyond 2^53 was ever granted
  if not string.find(last, '^%d+$') or tonumber(last) >= 9007199254740991 then return redis.error_reply('FOREIGN 2') end
  local time = redis.call('TIME')
  minted = string.format('%.0f', math.max(time[1] * 1000000 + time[2], last + 1))
  redis.call('SET', lock, token .. ':' .. minted .. ':' .. ARGV[4], 'PX', ttl)
  redis.call('SET', fence, minted, 'PX', retention)
end
if flags ~= FIRST_ASK and string.find(flags, 'l', 1, true) then
  others = others - redis.call('ZREM', queue, bell)
  redis.call('DEL', bell)
end
return {1, minted, others}

--# hand_over_lock
-- Before lock_acquire: the holder releases the lock, and the next waiter of its session takes it, in one step.
--
-- ARGV  the arguments of lock_acquire, and then the token of the holder
-- Returns {-1} when that token does not hold the lock: then nothing was done
--
-- Invariant: it wakes no waiter. If lock_acquire refuses the next waiter, it tells that waiter that the lock is free.
do
  local from = table.remove(ARGV)
  local held = redis.call('GET', KEYS[1])
  if not held or string.sub(held, 1, #from + 1) ~= from .. ':' then return {-1} end
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  redis.call('DEL', KEYS[1])
end

--# recall
-- Before an acquire that may be refused: asks the session that keeps a lock between its uses (`lock_keep`) to let go.
--
-- Of such a lease, the first field of the metadata in the lock key is a mark, {"cache":N. N is 1 while its session may keep it,
-- 2 when the session was asked, 4 when it was asked by a single try that waits for the answer, and 3 when it has answered that
-- a task uses the lock.
--
-- Invariants:
-- - who is refused has asked, in the same step. The session tracks the lock key, and hears of the write;
-- - it asks once for all: 1 becomes 2 or 4, and no other mark changes here. So a crowd of askers causes one push;
-- - the ttl stays, and PEXPIRE comes first, so that it works on a server that is out of memory.

-- Asks, if the lock is kept. Returns whether its session was asked, and has not answered yet.
local function recall(lock, queue, held, flags)
  local head, mark, rest = string.match(held, '^(%x+:%d+:{"cache":)([1-4])(.*)$')
  if mark == '1' then
    redis.call('PEXPIRE', queue, 10000)
    redis.call('SET', lock, head .. ((not has(flags, 'w') or has(flags, 'e')) and '4' or '2') .. rest, 'KEEPTTL')
  end
  return mark and mark ~= '3'
end

--# lock_keep
-- Before lock_acquire: takes a lock that is free, and for which nobody waits, so that its session may keep it between its uses.
-- Sent again with the token that already holds the lock, it is the same grant with a new ttl.
--
-- ARGV  the arguments of lock_acquire, and then how many fencing tokens are reserved
-- Returns {1, the first of these fencing tokens, 0, 1}; or nothing was done but to answer those who have asked, and
--      lock_acquire goes on
--
-- Invariants:
-- - the mark is 1 only while the queue is empty, and the session has read the key since its last change: the last step is a read,
--   from which on the connection tracks the key;
-- - the fence is at least every fencing token that its session may give without a request;
-- - a session that has asked twice, because its first answer was lost, does not keep a lock that was asked for meanwhile: the
--   mark becomes 3.
do
  local numbers = table.remove(ARGV)
  local lock, fence, token, ttl = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
  local held = redis.call('GET', lock)
  local awaited = redis.pcall('ZCARD', KEYS[3]) ~= 0
  if held and string.sub(held, 1, #token + 1) == token .. ':' then
    local head, mark, rest = string.match(held, '^(%x+:%d+:{"cache":)([1-4])(.*)$')
    if mark then
      redis.call('PEXPIRE', lock, ttl)
      redis.call('PEXPIRE', fence, ARGV[3])
      if mark == '1' and not awaited then
        redis.call('GET', lock)
        return {1, string.match(held, ':(%d+):'), 0, 1}
      end
      redis.call('SET', lock, head .. '3' .. rest, 'KEEPTTL')
    end
  elseif not held and not awaited and tonumber(numbers) > 0 then
    local last = redis.call('GET', fence) or '0'
    if string.find(last, '^%d+$') and tonumber(last) < 9007199254740991 - numbers then
      local time = redis.call('TIME')
      local minted = math.max(time[1] * 1000000 + time[2], last + 1)
      local first = string.format('%.0f', minted)
      redis.call('SET', lock, token .. ':' .. first .. ':{"cache":1,' .. string.sub(ARGV[4], 2), 'PX', ttl)
      redis.call('SET', fence, string.format('%.0f', minted + numbers - 1), 'PX', ARGV[3])
      redis.call('GET', lock)
      return {1, first, 0, 1}
    end
  end
end

--# lock_renew_kept
-- As lock_renew, for a session that may keep the lock: says whether the lock was asked for.
--
-- KEYS  1 lock   2 fence   3 queue
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 its session may keep it still ('1')
-- Returns 1 when renewed; 2 when renewed, and asked for; 0 when the token does not hold the lock, or the lease that has taken
--      its place
--
-- Invariants:
-- - an asker is heard also where the push was lost, or where it is of a version that does not ask: the queue is not empty;
-- - sent again, it says the same: the mark 3 is the answer "somebody uses it", and stays. A session that does not keep it any
--   more answers in advance: nobody waits for its answer;
-- - if it says 1, it ends in a read of the lock key;
-- - the answer rings a single try only, which leaves with it. A waiter that is rung here would ask for nothing.
local lock, queue = KEYS[1], KEYS[3]
local held = redis.call('GET', lock)
if not held or string.sub(held, 1, #ARGV[1] + 1) ~= ARGV[1] .. ':' then return thief_of(ARGV[1]) end
redis.call('PEXPIRE', lock, ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
local head, mark, rest = string.match(held, '^(%x+:%d+:{"cache":)([1-4])(.*)$')
local asked = mark ~= '1' or ARGV[4] ~= '1' or redis.pcall('ZCARD', queue) ~= 0
if mark and mark ~= '3' and asked then redis.call('SET', lock, head .. '3' .. rest, 'KEEPTTL') end
if mark == '4' then
  local entry = redis.call('ZRANGE', queue, 0, 0)[1]
  local first = entry and bell_in(queue, entry, 0)
  if first then redis.call('DEL', first) end
end
if not redis.call('GET', lock) then return 0 end
return asked and 2 or 1

--# give_back
-- Before lock_release, for a session that may have kept the lock: gives back the fencing tokens that it has not used.
--
-- ARGV  the arguments of lock_release, and then the last fencing token that was given (0: at most the first one was)
--
-- Invariant: only while the token holds the lock, the fence becomes the last fencing token that was given. Else a lock that is
-- handed over often would let the fence run ahead of the clock, and after its loss numbers would come again.
do
  local given = table.remove(ARGV)
  local held = redis.call('GET', KEYS[1])
  if held and string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. ':' then
    local first = string.match(held, ':(%d+):')
    if redis.call('PEXPIRE', KEYS[2], ARGV[2]) == 1 then
      redis.call('SET', KEYS[2], tonumber(given) > tonumber(first) and given or first, 'PX', ARGV[2])
    end
  end
end

--# locks_release
-- Frees locks that a session has kept and nobody uses, and wakes the first waiter of each.
--
-- KEYS  for each lock, one after the other, the lock, its fence and its queue
-- ARGV  for each lock, one after the other, the token, the retention of the fence in ms, and the last fencing token given
-- Returns {how many were freed, bells rung…}
--
-- Invariants: as of give_back and lock_release, for each of them; a lock that cannot be read changes nothing for the others.
local reply = {0}
for i = 1, #KEYS, 3 do
  local lock, fence, queue, token = KEYS[i], KEYS[i + 1], KEYS[i + 2], ARGV[i]
  local held = redis.pcall('GET', lock)
  if type(held) == 'string' and string.sub(held, 1, #token + 1) == token .. ':' then
    local first = string.match(held, ':(%d+):')
    redis.pcall('PEXPIRE', fence, ARGV[i + 1])
    redis.pcall('SET', fence, tonumber(ARGV[i + 2]) > tonumber(first) and ARGV[i + 2] or first, 'XX', 'PX', ARGV[i + 1])
    redis.call('DEL', lock)
    reply[1], held = reply[1] + 1, false
  end
  while held == false do
    local entry = redis.pcall('ZRANGE', queue, 0, 0)[1]
    local bell = entry and bell_in(queue, entry, 0)
    if not bell then break end
    if redis.call('DEL', bell) == 1 then
      reply[#reply + 1] = bell
      break
    end
    redis.call('ZREM', queue, bell)
  end
end
return reply

--# adopt_kept
-- Before lock_adopt, for a lease that its session may have kept: the lock key gets the lease's own fencing token.
--
-- ARGV  the arguments of lock_adopt, and then the fencing token of the lease
--
-- Invariant: the adopter has the number that its lease was given, which is the last one: so the fence has it, too. The key has
-- no mark: nobody waits for its session.
do
  local number = table.remove(ARGV)
  local held = redis.call('GET', KEYS[1])
  if held and string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. ':' then
    if redis.call('PEXPIRE', KEYS[2], ARGV[4]) == 1 then redis.call('SET', KEYS[2], number, 'PX', ARGV[4]) end
    redis.call('SET', KEYS[1], ARGV[1] .. ':' .. number .. ':' .. ARGV[5], 'KEEPTTL')
  end
end

--# lock_renew
-- Sets the ttl again for the token that holds the lock. Never creates a lock that is gone.
--
-- KEYS  1 lock   2 fence
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms
-- Returns 1 when renewed, 0 when the token does not hold the lock, or the lease that has taken its place
--
-- Invariants:
-- - writes with PEXPIRE alone, so that it works on a server that is out of memory;
-- - ends in a read of the lock key, so that a connection that tracks it is told of each later change.
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, #ARGV[1] + 1) ~= ARGV[1] .. ':' then return thief_of(ARGV[1]) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return redis.call('GET', KEYS[1]) and 1 or 0

--# lock_release
-- Frees the lock if the token holds it, and leaves the queue; then, if the lock is free, wakes the next waiter.
-- Until `at least` after its grant the lock is not free: it is kept, without a holder. The fence stays for its retention.
--
-- KEYS  1 lock   2 fence   3 queue   4 bell (only from a waiter that leaves the queue with it)
-- ARGV  1 token   2 retention of the fence, ms   3 wake the next ('1')   4 at least, ms (absent: free at once)
-- Returns {1 when freed, 0 when the token does not hold the lock, or the lease that has taken its place[, bell rung]}
--
-- Invariants:
-- - at most one waiter is woken: the first with a bell; the owners of entries before it are dead or were woken already;
-- - a lock that is kept has a token of no holder: NOBODY before the token of its last holder. It lasts until `at least`
--   after the grant, as the fencing token tells it; a server clock that was set back since then does not lengthen that;
-- - writes with DEL, ZREM and PEXPIRE first, so that it works on a server that is out of memory.
local lock, queue, bell = KEYS[1], KEYS[3], KEYS[4]
local NOBODY = string.rep('0', 32)

local freed = 0
local held = redis.call('GET', lock)
if held and string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. ':' then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  local left = 0
  if ARGV[4] then
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    local granted = math.min(now, string.match(held, ':(%d+):'))
    left = math.ceil(granted / 1000 + ARGV[4]) - math.floor(now / 1000)
  end
  if left > 0 then
    held = NOBODY .. held
    redis.call('SET', lock, held, 'PX', left)
  else
    redis.call('DEL', lock)
    held = false
  end
  freed = 1
elseif not bell then  -- a waiter that leaves was never its holder
  freed = thief_of(ARGV[1])
end
if bell then
  redis.call('ZREM', queue, bell)
  redis.call('DEL', bell)
end
while ARGV[3] == '1' and not held do
  -- The bells are not in KEYS: the queue names them, and they share its slot.
  local entry = redis.call('ZRANGE', queue, 0, 0)[1]
  local first = entry and bell_in(queue, entry, 0)
  if not first then break end
  if redis.call('DEL', first) == 1 then return {freed, first} end
  redis.call('ZREM', queue, first)
end
return {freed}

--# lock_owned
-- Tells whether the token holds the lock.
--
-- KEYS  1 lock
-- ARGV  1 token
-- Returns 1 or 0
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, #ARGV[1] + 1) ~= ARGV[1] .. ':' then return 0 end
return 1

--# lock_adopt
-- Gives the lock from one token to another, with a new ttl and the new holder's metadata.
-- Sent again after it was done, it is the same success. The fencing token stays.
--
-- KEYS  1 lock   2 fence
-- ARGV  1 token that holds   2 token that will hold   3 ttl, ms   4 retention of the fence, ms   5 metadata, JSON
-- Returns the fencing token, or '' when neither token holds the lock
--
-- Invariant: of several sessions that adopt with one old token, exactly one finds that token in the lock key.
local held = redis.call('GET', KEYS[1])
if not held then return '' end
local holder, fencing = string.match(held, '^(%x+):(%d+):')
if holder ~= ARGV[1] and holder ~= ARGV[2] then return '' end
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('SET', KEYS[1], ARGV[2] .. ':' .. fencing .. ':' .. ARGV[5], 'PX', ARGV[3])
return fencing

--# lock_annotate
-- Changes the metadata of the lock if the token holds it. Never creates a lock that is gone; ttl and fencing token stay.
-- Sent again, it does the same.
--
-- KEYS  1 lock
-- ARGV  1 token   2 metadata, JSON
-- Returns 1 when changed, 0 when the token does not hold the lock
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, #ARGV[1] + 1) ~= ARGV[1] .. ':' then return 0 end
redis.call('SET', KEYS[1], ARGV[1] .. string.match(held, ':%d+:') .. ARGV[2], 'KEEPTTL')
return 1

--# lock_locked
-- Tells whether a try now would be refused.
--
-- KEYS  1 lock
-- Returns 1 or 0
return redis.call('EXISTS', KEYS[1])

--# lock_steal
-- Takes the lock from its holder, before all waiters.
-- Sent again with the token that already holds the lock, it is the same grant with a new ttl.
--
-- KEYS  1 lock   2 fence   3 queue   4 nest
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON
-- Returns {1, fencing token, number of waiters in the queue, the former value of the lock key ('': none)}
--
-- Invariant: the lock key is deleted before it is written, so that its holder is told of that by events, too.
local lock, fence, queue, nest, token = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1]
local held, others = known(lock, redis.call('GET', lock)), number_in(queue)
if held_by(token, held) then
  redis.call('PEXPIRE', lock, ARGV[2])
  keep(fence, ARGV[3])
  return {1, minted_in(held), others, ''}
end
local left, minted = redis.call('PTTL', lock), mint(fence, MICROSECONDS, ARGV[3])
local taken = token .. ':' .. minted .. ':' .. ARGV[4]
if held then leave_mark(string.match(held, '^%x+'), taken, left) end
redis.call('DEL', lock, nest)
redis.call('SET', lock, taken, 'PX', ARGV[2])
return {1, minted, others, held or ''}

--# force_lock
-- Frees a lock that was granted up to a fencing token, whichever token holds it, and wakes the waiters. Its fence stays.
--
-- KEYS  1 lock   2 nest   3 queue   4 fence   5 value (only of a run)
-- ARGV  1 the latest fencing token that it frees   3 the mark for its holder
-- Returns {1 when freed, or else 0, bells rung…}
discard_fence(KEYS[4])
if KEYS[5] then discard('hash', KEYS[5]) end
if KEYS[5] and not redis.call('HGET', KEYS[5], 'run') then redis.call('DEL', KEYS[5]) end
local type, left = type_of(KEYS[1]), redis.call('PTTL', KEYS[1])
local token, minted
if type == 'string' then token, minted = string.match(redis.call('GET', KEYS[1]), '^(%x+):(%d+):') end
if type ~= 'none' and not is_due(minted) then return {0} end
redis.call('DEL', KEYS[1], KEYS[2])
if token then tell(token, minted, left) end
return {type == 'none' and 0 or 1, unpack(wake_first(KEYS[3], 0, false))}

--# redlock_vote
-- Before lock_acquire: the vote of a master on which the lock is free, and nobody waits for it. The lease gets the fencing token
-- that its asker proposes, if that is larger than each one that was granted here; then it is as if this master had minted it, and
-- had written it back (see redlock_seal).
--
-- ARGV  the arguments of lock_acquire, and then the fencing token that is proposed (0: none)
-- Returns {1, fencing token, 0, the server's time, microseconds}; the fencing token has a leading zero where it is the proposed one.
--      Or nothing was done, and lock_acquire goes on
--
-- Invariants:
-- - it does what lock_acquire would do, but for the number, or nothing;
-- - the fence becomes larger than it was. Where there is none, it may be lost: then a number is not less than the server's time,
--   as of what lock_acquire mints.
do
  local proposed = table.remove(ARGV)
  local lock, fence = KEYS[1], KEYS[2]
  if not redis.call('GET', lock) and redis.pcall('ZCARD', KEYS[3]) == 0 then
    local last = redis.call('GET', fence)
    if not last or string.find(last, '^%d+$') and tonumber(last) < 9007199254740991 then
      local time = redis.call('TIME')
      local now = time[1] * 1000000 + time[2]
      local least = last and last + 1 or now
      local minted, mark = string.format('%.0f', math.max(now, least)), ''
      if tonumber(proposed) >= least then minted, mark = proposed, '0' end
      redis.call('SET', lock, ARGV[1] .. ':' .. mark .. minted .. ':' .. ARGV[4], 'PX', ARGV[2])
      redis.call('SET', fence, minted, 'PX', ARGV[3])
      return {1, mark .. minted, 0, string.format('%.0f', now)}
    end
  end
end

--# redlock_seal
-- Writes the fencing token of a lease back to one of its masters, which has granted the lease before, and leaves the queue.
-- Sent again, it does the same. The ttl stays.
--
-- KEYS  1 lock   2 fence   3 queue   4 bell (the last two only from a waiter that is in the queue with that bell)
-- ARGV  1 token   2 fencing token of the lease   3 retention of the fence, ms   4 the lease was given already ('1')
-- Returns 1 when the lock carries the token and the fencing token, 0 when it does not
--
-- Invariants:
-- - a waiter is in the queue until its lease is confirmed;
-- - before a lease is given, only a master that still has its token, and minted nothing larger for it, confirms it;
-- - the fence is at least every fencing token that was confirmed here while it was kept;
-- - a fencing token that was written back has a leading zero, also one that came with the vote. Of those that one lease has on
--   several masters, the largest is its own.
local lock, fence = KEYS[1], KEYS[2]
local token, sealed = ARGV[1], ARGV[2]

local holder, minted, metadata = string.match(redis.call('GET', lock) or '', '^(%x+):(%d+):(.*)$')
if holder ~= token then return 0 end
if ARGV[4] ~= '1' and tonumber(minted) > tonumber(sealed) then return 0 end

redis.call('PEXPIRE', fence, ARGV[3])
redis.call('SET', lock, token .. ':0' .. sealed .. ':' .. metadata, 'KEEPTTL')
if (tonumber(redis.call('GET', fence) or 0) or 0) < tonumber(sealed) then
  redis.call('SET', fence, sealed, 'PX', ARGV[3])
end
if KEYS[4] then
  redis.call('ZREM', KEYS[3], KEYS[4])
  redis.call('DEL', KEYS[4])
end
return 1

--# mid_move_lock
-- A simple lock while its slot moves: its holder needs the lock key alone.
if KEYS[3] then KEYS[3] = HIDDEN end
KEYS[4] = nil
