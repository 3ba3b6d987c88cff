-- Single flights: one runs, and what that leaves is there for all who wait.

--# flights
-- Runs of a single flight. The run key is that of a simple lock, and its metadata begins with the fingerprint:
-- 'token:fencing token:{"fingerprint":"…",…'.
--
-- Invariant: value is a hash with the result of a run: run (its fencing token), at (when the result was made,
-- microseconds of the server's time), fresh (until when no run need make it again, ms), until (until when it is kept, ms, or 0),
-- cost (of its run, ms), again (from when on it may be made again, ms), failed (the last run that could not make it again),
-- print (fingerprint), tag and payload. The hash outlasts its `until`: callers that waited for that run still ask for it.
-- If the key was forgotten, it has also `forgot`, the newest fencing token of that time, and `by`, the request that dropped a
-- value: what was begun by then keeps nothing, and callers that come later get only what was begun later. Where nothing else is
-- there, `run` and `until` are 0.
local AT_ONCE = 16

local function fingerprint_of(held)
  return string.match(known(KEYS[1], held), '^%x+:%d+:{"fingerprint":"(%x*)"') or reject_foreign(KEYS[1])
end

-- Wakes all waiters: this step rings the first living ones, and each of them rings as many more when it asks again.
-- Returns the bells that it rang.
local function wake_all(queue)
  local rung = {}
  while #rung == 0 do
    local entries = redis.call('ZRANGE', queue, 0, AT_ONCE - 1)
    if #entries == 0 then break end
    for _, entry in ipairs(entries) do
      local bell = bell_in(queue, entry, 0)
      if bell and redis.call('DEL', bell) == 1 then rung[#rung + 1] = bell end
    end
    redis.call('ZREM', queue, unpack(entries))
  end
  return rung
end

--# flight_acquire
-- Takes the run, or answers with the value that is there, or tells how long the present run may last and seats the asker.
-- Sent again with the token that already has the run, it is the same grant with a new ttl.
--
-- KEYS  1 run   2 value   3 fence   4 queue   5 bell (only if the asker will wait)
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 fingerprint, hexadecimal
--       6 fencing token of the run that the asker was told to wait for, or ''   7 flags: t only in turn, w will wait if
--       refused, q may have a bell, l leaves the queue   8 a value is due this many times its cost before its end
--       9 run whose value the asker makes again, or ''
-- Returns {1, fencing token, how many others wait in the queue, the server's time, microseconds}
--      or {0, remaining ms of the run (-2: there is none, and another waiter is first), the fencing token that the run whose
--          result the asker gets has at least, or '0'[, own bell]}
--      or {2, fencing token of the run that left the value, how many microseconds ago it was made (-1: it is kept, -2: the
--          server's clock was set back since), 1 if the value is due and no run makes it again, tag, payload, bells rung…}
--      or {3, bells rung…} when the key is in use with another fingerprint
--
-- Invariants: an asker that was told of a run gets the result of that run or of a later one, and an asker that was told of
-- none gets only a value that is kept; an asker that does not wait any more leaves the queue; while a value is kept, the run
-- is granted only to an asker that names the run of that value; a value that was made later than now is one of before the clock
-- was set back, and its times count from now.
local run, value, fence, queue, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, ttl, retention, fingerprint, awaited_run = ARGV[1], ARGV[2], ARGV[3], ARGV[5], ARGV[6]
local flags, replaced = ARGV[7], ARGV[9]

local function leave()
  if not has(flags, 'l') then return 0 end
  redis.call('DEL', bell)
  return redis.call('ZREM', queue, bell)
end

local held = redis.call('GET', run)
local others = number_in(queue)  -- read before the first write: a rejected step has done nothing
if held_by(token, held) then
  redis.call('PEXPIRE', run, ttl)
  keep(fence, retention)
  return {1, minted_in(held), others - leave(), whole(MICROSECONDS)}
end

local left = redis.call('HMGET', value, 'run', 'until', 'print', 'at', 'tag', 'fresh', 'cost', 'again', 'forgot')
if not left[1] and redis.call('HLEN', value) > 0 then reject_foreign(value) end
local kept = left[1] and NOW < tonumber(left[2])
local ahead = (left[4] or 0) - MICROSECONDS
if kept and ahead > 0 then
  local back = math.ceil(ahead / 1000)
  left[2], left[6], left[8] = left[2] - back, left[6] - back, left[8] - back
  keep(value, left[2] - NOW)
  redis.call('HSET', value,
    'at', whole(MICROSECONDS), 'until', whole(left[2]), 'fresh', whole(left[6]), 'again', whole(left[8]))
end
local awaited = left[1] and awaited_run ~= '' and tonumber(left[1]) >= tonumber(awaited_run)
if (kept or awaited) and left[3] == fingerprint and left[1] ~= replaced then
  leave()
  local age = kept and -1 or ahead > 0 and -2 or -ahead
  local due = kept and not held and NOW >= tonumber(left[8]) and NOW + left[7] * ARGV[8] >= tonumber(left[6])
  return {2, left[1], age, due and 1 or 0, left[5], redis.call('HGET', value, 'payload'), unpack(wake_all(queue))}
end
if kept and left[3] ~= fingerprint then
  leave()
  return {3, unpack(wake_all(queue))}
end
if held and fingerprint_of(held) ~= fingerprint then
  leave()
  return {3}
end
if held then
  local result = minted_in(held)
  if left[9] and tonumber(result) <= tonumber(left[9]) then result = whole(result + 1) end
  return {0, redis.call('PTTL', run), result, enqueue_in_each({queue}, bell, flags)}
end
local first = redis.call('ZRANGE', queue, 0, 0)[1]
if has(flags, 't') and first and first ~= bell then return {0, -2, '0', enqueue_in_each({queue}, bell, flags)} end

local minted = mint(fence, MICROSECONDS, retention)
redis.call('SET', run, token .. ':' .. minted .. ':' .. ARGV[4], 'PX', ttl)
return {1, minted, others - leave(), whole(MICROSECONDS)}

--# flight_publish
-- Ends the run of the token, and leaves its result: a value or an error. Wakes all waiters for the result.
-- Sent again after it was done, it is the same success.
--
-- KEYS  1 run   2 value   3 fence   4 queue
-- ARGV  1 token   2 fencing token   3 retention of the fence, ms   4 for how long it is fresh, ms
--       5 for how long it is kept, ms   6 for how long it is there for callers that waited, ms   7 its cost, ms
--       8 pause: '' to replace the value that is there; else a kept value stays, and is not due again for that many ms
--       9 tag   10 payload   11 when it was made, microseconds of the server's time   12 fencing token of the run in which it
--       was begun: an earlier one, if that was lost
-- Returns {1 when published, 0 when the token does not have the run, bells rung…}
--
-- Invariants:
-- - no caller sees the result of a token that has lost the run;
-- - a value that is kept stays when it could not be made again;
-- - the age of a result counts from when it was made, however late this step comes. A result that is not kept has no
--   `until` that a clock that is set back could bring again;
-- - what was begun before the key was forgotten is not kept;
-- - the first write is a PEXPIRE, so that it works on a server that is out of memory, and nothing is used after it was deleted,
--   so that it works while the slot moves.
local run, value, queue = KEYS[1], KEYS[2], KEYS[4]

local held = redis.call('GET', run)
local left = redis.call('HMGET', value, 'run', 'until', 'failed', 'forgot')
if not held_by(ARGV[1], held) then
  if left[1] == ARGV[2] or left[3] == ARGV[2] then return {1} end
  return {0, not held and wake(queue) or nil}
end
local print = fingerprint_of(held)
redis.call('PEXPIRE', KEYS[3], ARGV[3])
if ARGV[8] ~= '' and left[1] and NOW < tonumber(left[2]) then
  redis.call('HSET', value, 'failed', ARGV[2], 'again', whole(NOW + ARGV[8]))
  local rung = wake_all(queue)
  redis.call('DEL', run)
  return {1, unpack(rung)}
end
local fresh, keep_for = ARGV[4], ARGV[5]
if left[4] and tonumber(ARGV[12]) <= tonumber(left[4]) then fresh, keep_for = '0', '0' end
local at = math.min(ARGV[11], MICROSECONDS)  -- a clock that was set back since the grant is behind
local made = math.floor(at / 1000)
redis.call('HSET', value,
  'run', ARGV[2], 'at', whole(at), 'fresh', whole(made + fresh), 'until', keep_for == '0' and 0 or whole(made + keep_for),
  'cost', ARGV[7], 'again', 0, 'failed', '', 'print', print, 'tag', ARGV[9], 'payload', ARGV[10])
redis.call('PEXPIRE', value, math.max(made + keep_for - NOW, ARGV[6]))
local rung = wake_all(queue)
redis.call('DEL', run)
return {1, unpack(rung)}

--# flight_forget
-- Drops the value that is kept, and sees to it that a run under way keeps nothing, and that later callers do not get its result.
-- Sent again, it is the same.
--
-- KEYS  1 run   2 value   3 fence
-- ARGV  1 token of this request   2 for how long a run that was lost may come back, ms
-- Returns {1 when a value was dropped, 0 when none was kept}
--
-- Invariant: the first write is a PEXPIRE, so that it works on a server that is out of memory.
local DAY = 86400000
local run, value, fence = KEYS[1], KEYS[2], KEYS[3]

local newest = above(fence, 0) - 1
local held = redis.call('EXISTS', run) == 1
local left = redis.call('HMGET', value, 'run', 'until', 'by')
if not left[1] and redis.call('HLEN', value) > 0 then reject_foreign(value) end
if left[3] == ARGV[1] then return {1} end
local kept = left[1] and NOW < tonumber(left[2])
if not kept and newest == 0 then return {0} end
if kept then newest = math.max(newest, tonumber(left[1])) end
keep(fence, ARGV[2])
if kept or not left[1] then
  redis.call('HSET', value, 'run', 0, 'at', 0, 'fresh', 0, 'until', 0, 'cost', 0, 'again', 0, 'failed', '', 'print', '',
    'tag', '', 'payload', '', 'by', kept and ARGV[1] or '')
end
redis.call('HSET', value, 'forgot', whole(newest))
redis.call('PEXPIRE', value, held and DAY or ARGV[2])
return {kept and 1 or 0}
