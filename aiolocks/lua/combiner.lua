-- Combiners: work that callers leave, and that one of them does for all.

--# combiners
-- Functions for the steps of combiners. The run is a simple lock in a name space of its own: at most one batch of a name is
-- under way.
--
-- KEYS of every step  1 run   2 value   3 items   4 answers
--
-- Invariants:
-- - items is a sorted set by number: 'number:until when it is kept, ms:w or l:payload' (w: a caller waits for its answer,
--   l: it was left). A number is at least the server's time in microseconds, and larger than every earlier one: so no item
--   has a number that an item had which the server has lost;
-- - value is a hash: last (the last number that was given), done (the last number of the last batch that was acknowledged),
--   upto (the last number of the last batch that was begun), batch and attempt (of that batch), started (when it was begun, ms),
--   acked (fencing token of the last run that has ended a batch), late (that of the last one that has failed by being late),
--   known (for how long a put is known at least, ms: the longest that any session has asked for), waiting (how many items
--   wait or are being run), woken (if not all waiters for the batch that was acknowledged last were woken, the number of its
--   last item; else 0);
-- - a waiter has a place in the queue that is not above the number of the first item for which it waits: so the end of a batch
--   wakes all waiters for its answers, and few of the waiters for a later batch. A worker has its time of arrival;
-- - an item is above done until its batch is acknowledged by the run that holds the key, or held it last, and no longer. Items up to done are
--   garbage, of which each step removes some: no step takes long. If no others are there, they go at once;
-- - a batch that was begun has the same items in each attempt, and after the death of its runner;
-- - answers is a sorted set by the last item that an answer is for: 'first item:when it came, ms:tag:payload'. Answers above
--   done are of the run that holds the key, or held it last, and nobody is told of them before it acknowledges. A run leaves one for each item of its batch
--   whose caller waits elsewhere. So an item up to done without an answer was lost, or its answer was removed with time.
local run, value, items, answers = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local SWEPT, PIECE, PIECE_BYTES, LINGER, SLACK, AT_ONCE = 100, 50, 65536, 30000, 3600000, 16

local found = redis.call('HMGET', value, 'last', 'done', 'upto', 'batch', 'attempt', 'started', 'acked', 'woken',
  'known', 'late')
if not found[1] and redis.call('HLEN', value) > 0 then reject_foreign(value) end
local last, done, upto = tonumber(found[1] or 0), tonumber(found[2] or 0), tonumber(found[3] or 0)
local batch, attempt, started = tonumber(found[4] or 0), tonumber(found[5] or 0), tonumber(found[6] or 0)

-- Wakes all who wait up to that place, but the asker: this step rings the first living ones, and each of them rings as many
-- more when it asks again, whatever it is told. Returns the bells that it rang.
local function wake_upto(queue, upto, asker)
  local rung = {}
  while #rung == 0 do
    local passed = {}
    for _, entry in ipairs(redis.call('ZRANGEBYSCORE', queue, '-inf', upto, 'LIMIT', 0, AT_ONCE)) do
      if entry ~= asker then
        passed[#passed + 1] = entry
        local bell = bell_in(queue, entry, 0)
        if bell and redis.call('DEL', bell) == 1 then rung[#rung + 1] = bell end
      end
    end
    if #passed == 0 then break end
    redis.call('ZREM', queue, unpack(passed))
  end
  return rung
end

local function above(number) return '(' .. whole(number) end

-- Whether the token has the run, or has had it last, with this fencing token: then no other run has begun since. Also what
-- the run key holds.
local function ran_last(token, minted, fence)
  local held = redis.call('GET', run)
  return held_by(token, held) or not held and redis.call('GET', fence) == minted, held
end

-- How many items are garbage, and how many wait or are being run.
local function counts()
  local garbage = redis.call('ZCOUNT', items, '-inf', whole(done))
  return garbage, redis.call('ZCARD', items) - garbage
end

-- Removes garbage: items that are done, and answers that nobody asks for any more.
local function sweep()
  local garbage = counts()
  if garbage > 0 then redis.call('ZREMRANGEBYRANK', items, 0, math.min(garbage, SWEPT) - 1) end
  for _ = 1, PIECE do
    local answer, score = unpack(redis.call('ZRANGE', answers, 0, 0, 'WITHSCORES'))
    if not answer or tonumber(score) > done then break end
    local came = tonumber(string.match(answer, '^%d+:(%d+):%a:') or math.huge)  -- what is foreign stays
    if came > NOW - LINGER then break end
    redis.call('ZREMRANGEBYRANK', answers, 0, 0)
  end
end

-- Writes these fields of value, which lasts as long as the items, and for the retention of the fence at least.
local function note(ms, ...)
  local _, waiting = counts()
  redis.call('HSET', value, 'last', whole(last), 'waiting', waiting, ...)
  keep(value, math.max(ms, redis.call('PTTL', items)))
end

-- Leaves answers. ARGV from `at` on, for each of them: its first item, its last one, tag, payload.
local function leave_answers(at)
  local added = {}
  for i = at, #ARGV, 4 do
    added[#added + 1] = ARGV[i + 1]
    added[#added + 1] = ARGV[i] .. ':' .. whole(NOW) .. ':' .. ARGV[i + 2] .. ':' .. ARGV[i + 3]
  end
  if #added == 0 then return end
  redis.call('ZADD', answers, unpack(added))
  keep(answers, 2 * LINGER)
end

--# combiner_hand_out
-- Functions that begin a batch, and hand it out in pieces.

-- Milliseconds until the next batch may begin, 0 if it may now, or nil where there is nothing to run.
local function due(most, window, within)
  local garbage, waiting = counts()
  if waiting == 0 then return nil end
  if upto > done and redis.call('ZCOUNT', items, above(done), whole(upto)) > 0 then return 0 end
  if window == 0 or waiting >= most then return 0 end
  local first = tonumber(redis.call('ZRANGE', items, garbage, garbage, 'WITHSCORES')[2])
  local newest = tonumber(redis.call('ZRANGE', items, -1, -1, 'WITHSCORES')[2])
  if first > MICROSECONDS then return 0 end  -- the clock was set back since
  local ends = first + window * 1000
  if within > 0 then ends = math.min(first + within * 1000, newest + window * 1000) end
  return math.max(0, math.ceil((ends - MICROSECONDS) / 1000))
end

-- Begins the next batch, unless one was begun that is not acknowledged.
local function begin(most, retention)
  local garbage = counts()
  if upto > done and redis.call('ZCOUNT', items, above(done), whole(upto)) > 0 then return end
  local ends = redis.call('ZRANGE', items, garbage + most - 1, garbage + most - 1, 'WITHSCORES')[2]
    or redis.call('ZRANGE', items, -1, -1, 'WITHSCORES')[2]
  upto, batch, attempt, started = tonumber(ends), batch + 1, 1, NOW
  note(tonumber(retention), 'upto', whole(upto), 'batch', whole(batch), 'attempt', 1, 'started', whole(started))
end

-- The items of the batch after this number: {batch, attempt, its last number, the last number that was looked at, how many
-- were left out because they were not kept so long, number, flag, payload…}. Of those that were left out, the ones whose
-- callers wait are named all the same, with the flag d: somebody must tell them.
local function piece(after)
  local told, bytes, left_out, at = {batch, attempt, whole(upto), '', 0}, 0, 0, math.max(after, done)
  local short = false
  while not short and bytes < PIECE_BYTES and #told < 5 + 3 * PIECE do
    local some = redis.call('ZRANGEBYSCORE', items, above(at), whole(upto), 'LIMIT', 0, 5)
    for _, item in ipairs(some) do
      local number, ends, flag, payload = string.match(item, '^(%d+):(%d+):([wl]):(.*)$')
      if not number then reject_foreign(items) end
      if tonumber(ends) < started then
        left_out, flag, payload = left_out + 1, flag == 'w' and 'd', ''
      end
      if flag then told[#told + 1], told[#told + 2], told[#told + 3] = number, flag, payload end
      at, bytes = tonumber(number), bytes + #item
    end
    short = #some < 5
  end
  told[4], told[5] = whole(short and upto or at), left_out
  return told
end

--# combiner_puts
-- A function that leaves items: for combiner_put, and for an asker that brings items.
--
-- Invariants:
-- - puts is a sorted set with two entries for each put: its token by the number of its first item, and 'token.' by the
--   number after its last one. It is trimmed by time: numbers are times. No put is forgotten sooner: where too many are
--   known, one more is refused;
-- - no item is taken beyond `most waiting`, and those before it are.

-- Leaves the items of a put. Said again with its token, it leaves none.
-- ARGV from `at` on: how many may wait at most, for how long an item is kept, ms, for how long a put is known, ms, how many
-- are known at most, and then for each item: flag, payload.
-- Returns the number of the first item, how many were taken, how many wait, and whether they were left only now. The numbers
-- follow each other.
local function leave_items(token, puts, idle, retention, at)
  local known_first = redis.call('ZSCORE', puts, token)
  local _, waiting = counts()
  if known_first then
    return whole(known_first), redis.call('ZSCORE', puts, token .. '.') - known_first, waiting
  end
  local newest = redis.call('ZRANGE', items, -1, -1, 'WITHSCORES')[2] or 0
  local first = math.max(MICROSECONDS, last + 1, done + 1, newest + 1)
  local taken = math.min((#ARGV - at - 3) / 2, tonumber(ARGV[at]) - waiting)
  if taken < 1 then return '0', 0, waiting end
  local known = math.max(ARGV[at + 2], found[9] or 0)
  local over = MICROSECONDS - known * 1000
  if redis.call('ZCOUNT', puts, above(over), '+inf') >= 2 * ARGV[at + 3] then error('CROWDED ' .. ARGV[at + 3], 0) end
  sweep()
  local added, until_ms = {}, whole(NOW + ARGV[at + 1])
  for i = 0, taken - 1 do
    local number, flag, payload = whole(first + i), ARGV[at + 4 + 2 * i], ARGV[at + 5 + 2 * i]
    added[2 * i + 1], added[2 * i + 2] = number, number .. ':' .. until_ms .. ':' .. flag .. ':' .. payload
  end
  redis.call('ZADD', items, unpack(added))
  keep(items, ARGV[at + 1] + SLACK)
  redis.call('ZREMRANGEBYSCORE', puts, '-inf', whole(over))
  redis.call('ZADD', puts, whole(first), token, whole(first + taken), token .. '.')
  redis.call('PEXPIRE', puts, known)
  last = first + taken - 1
  note(tonumber(retention), 'known', known)
  redis.call('DEL', idle)
  return whole(first), taken, waiting + taken, true
end

--# combiner_put
-- Leaves items. Sent again with its token, it leaves none.
--
-- KEYS  as in combiners; 5 puts   6 queue   7 idle
-- ARGV  1 token   2 retention, ms, and then as in combiner_puts
-- Returns {number of the first item, how many were taken, how many wait, bells rung…}
--
-- Invariant: the bell of a waiter is rung if there is no run: it may be a worker that waits for work.
number_in(KEYS[6])
local first, taken, waiting, left = leave_items(ARGV[1], KEYS[5], KEYS[7], ARGV[2], 3)
return {first, taken, waiting, left and redis.call('EXISTS', run) == 0 and wake(KEYS[6]) or nil}

--# combiner_acquire
-- Takes the run, with the first items of its batch; or tells the answers that the asker waits for; or seats the asker.
-- Sent again with the token that already has the run, it is the same grant with a new ttl. An asker may bring items: then
-- they are left first.
--
-- KEYS  as in combiners; 5 fence   6 queue   7 idle   8 bell (only if the asker will wait)   9 puts (only if it brings items)
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 flags: w will wait if refused, q may have a
--       bell, l leaves the queue   6 how many items a batch has at most   7 window, ms
--       8 the most that windows last, one after the other, ms; 0: there is one   9 the items that the asker waits for:
--       'first-last' of each row, one after the other   10 for how long a worker without work is silent, ms
--       11 token of the put, if it brings items, and then as in combiner_puts
-- Returns {1, fencing token, how many others wait in the queue, ms until the batch begins, {as piece in combiner_hand_out},
--          bells rung…}
--      or {0, remaining ms of the run, bells rung…[, own bell]}
--      or {2, the number up to which all answers are told for which it asks, {first item, last item, tag, payload…}, {first, last… of rows that
--          the server does not know}, bells rung…}
-- If items were brought, {number of the first item, how many were taken, how many wait, one of these}; the asker waits for
-- these items, too. If none were taken, it is told nothing.
--
-- Invariants:
-- - an asker that is told something has left the queue;
-- - no asker is told the answer of a batch that is not acknowledged;
-- - a run is granted only if there is something to run, and no answer is left of one that was not acknowledged; if there is
--   something, to whoever asks first, for it is for all: an asker that was woken may find a run that has its items;
-- - an asker that was woken wakes the waiters for the batch whose end has woken it, however many they are; and the first
--   waiter, if it leaves a run that it could have had.
local fence, queue, idle, bell = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local token, ttl, retention, flags = ARGV[1], ARGV[2], ARGV[3], ARGV[5]
local most, window, within = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

local function leave()
  if not has(flags, 'l') then return 0 end
  redis.call('DEL', bell)
  return redis.call('ZREM', queue, bell)
end

local function wake_others()
  local last_place = tonumber(found[8] or 0)
  if last_place == 0 then return {} end
  local rung = wake_upto(queue, whole(last_place), bell)
  if redis.call('ZCOUNT', queue, '-inf', whole(last_place)) == 0 then
    pcall(redis.call, 'HSET', value, 'woken', 0)  -- not out of memory; then they are looked for once more
  end
  return rung
end

local rows, brought = ARGV[9], nil

local function reply_with(reply)
  if not brought then return reply end
  brought[4] = reply
  return brought
end

local function refuse(remaining)
  local reply = {0, remaining, unpack(wake_others())}
  local lowest = string.match(rows, '^%d+')
  if lowest and has(flags, 'w') then
    pcall(redis.call, 'PEXPIRE', queue, QUEUE_TTL)  -- allowed out of memory; then so are later writes
    pcall(redis.call, 'ZADD', queue, 'NX', lowest, bell)
  end
  reply[#reply + 1] = enqueue_in_each({queue}, bell, flags)
  return reply_with(reply)
end

-- With when the batch begins, and its first items if that is now.
local function grant(minted, others)
  local wait, first = due(most, window, within) or 0, {}
  if wait == 0 then
    begin(most, retention)
    first = piece(0)
  end
  return reply_with({1, minted, others - leave(), wait, first, unpack(wake_others())})
end

local held = redis.call('GET', run)
local others = number_in(queue)
if not held_by(token, held) then known(run, held) end
if ARGV[11] then
  brought = {leave_items(ARGV[11], KEYS[9], idle, retention, 12)}
  if brought[2] == 0 then
    leave()
    return reply_with({2, '0', {}, {}})
  end
  rows = rows .. ' ' .. brought[1] .. '-' .. whole(brought[1] + brought[2] - 1)
  rows = string.gsub(rows, '^ ', '')
end
if held_by(token, held) then
  redis.call('PEXPIRE', run, ttl)
  keep(fence, retention)
  return grant(minted_in(held), others)
end

local told, missing, bytes, settled = {}, {}, 0, done
local covered, newest = 0, 0
for first, ends in string.gmatch(rows, '(%d+)-(%d+)') do
  first, ends = tonumber(first), tonumber(ends)
  newest = ends
  local at, until_done = math.max(first, covered + 1), math.min(ends, done)
  while at <= until_done do
    if #told >= 4 * PIECE or bytes > PIECE_BYTES then
      settled = at - 1
      break
    end
    local answer, score = unpack(redis.call('ZRANGEBYSCORE', answers, whole(at), '+inf', 'WITHSCORES', 'LIMIT', 0, 1))
    if not answer or tonumber(score) > done then break end
    local from, tag, payload = string.match(answer, '^(%d+):%d+:(%a):(.*)$')
    if not from then reject_foreign(answers) end
    if tonumber(from) > until_done then break end
    told[#told + 1], told[#told + 2], told[#told + 3], told[#told + 4] = from, score, tag, payload
    bytes, covered = bytes + #payload, tonumber(score)
    at = covered + 1
  end
  if settled < done then break end
  first = math.max(first, done + 1)
  if first <= ends and redis.call('ZCOUNT', items, whole(first), whole(ends)) == 0 then
    missing[#missing + 1], missing[#missing + 2] = whole(first), whole(ends)
  end
end
local lowest = tonumber(string.match(rows, '^%d+') or math.huge)
if lowest <= done or #missing > 0 then
  leave()
  local rung = wake_others()
  if not held and #rung == 0 and due(most, window, within) then rung[1] = wake(queue) end
  return reply_with({2, whole(math.min(settled, newest)), told, missing, unpack(rung)})
end

if held then return refuse(redis.call('PTTL', run)) end
if not due(most, window, within) then
  local refused = refuse(tonumber(ARGV[10]))
  if has(flags, 'w') then redis.call('SET', idle, '', 'PX', ARGV[10]) end
  return refused
end
local minted = mint(fence, MICROSECONDS, retention)
redis.call('SET', run, token .. ':' .. minted .. ':' .. ARGV[4], 'PX', ttl)
redis.call('ZREMRANGEBYSCORE', answers, above(done), '+inf')
sweep()
return grant(minted, others)

--# combiner_take
-- Hands out more of the batch to its runner; or begins it, once its window is over. Sent again, it does the same.
--
-- KEYS  those of combiners
-- ARGV  1 token   2 retention, ms   3 how many items a batch has at most   4 window, ms   5 the most that windows last, ms
--       6 number of the last item that was handed out, or 0
-- Returns {ms until the batch begins, {as piece in combiner_hand_out}}, or {-1} when the token does not have the run
--
-- Invariant: only the token that has the run is handed out items.
if not held_by(ARGV[1], redis.call('GET', run)) then return {-1} end
local wait = due(tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]))
if not wait then return {0, {}} end
if wait > 0 then return {wait, {}} end
begin(tonumber(ARGV[3]), ARGV[2])
return {0, piece(tonumber(ARGV[6]))}

--# combiner_answer
-- Leaves some answers of a batch, of which nobody is told before it is acknowledged. Sent again, it does the same.
--
-- KEYS  as in combiners; 5 fence
-- ARGV  1 token   2 fencing token, and then for each answer: its first item, its last one, tag, payload
-- Returns 1, or 0 when the token does not have the run, and another run has begun
--
-- Invariant: the first write is one that a server allows that is out of memory: a run that was done is not done again for
-- that.
if not ran_last(ARGV[1], ARGV[2], KEYS[5]) then return 0 end
keep(answers, 2 * LINGER)  -- allowed out of memory; then so are later writes
sweep()
leave_answers(3)
return 1

--# combiner_ack
-- Ends the run of the token: its batch is done, its waiters are woken for the answers, and one more waiter for the next run;
-- or it has failed, and its items stay for another attempt. Sent again after it was done, it is the same success.
--
-- KEYS  as in combiners; 5 fence   6 queue
-- ARGV  1 token   2 fencing token   3 retention of the fence, ms   4 number of the last item of the batch
--       5 how it has ended: 'f' failed, 'd' done   6 its lease has ended by its own fault ('1'), and then the last answers,
--       as in combiner_answer
-- Returns {1 when ended, 0 when the token does not have the run, and another run has begun, bells rung…}
--
-- Invariants:
-- - only the token that has the run, or had it last, acknowledges, and only the batch that it was handed out;
-- - a run that was late by its own fault is an attempt, also if another one has begun: else such a batch would be run for
--   ever. Each is counted once, unless several are sent again in turns;
-- - if nothing waits above it, no item stays: payloads would, for as long as items are kept;
-- - the first write is a DEL, so that it works on a server that is out of memory.
local queue = KEYS[6]
if found[7] == ARGV[2] then return {1} end
local is_last, held = ran_last(ARGV[1], ARGV[2], KEYS[5])
if not is_last then
  if ARGV[6] == '1' and tonumber(ARGV[4]) == upto and upto > done and found[10] ~= ARGV[2] then
    note(tonumber(ARGV[3]), 'attempt', attempt + 1, 'late', ARGV[2])
  end
  return {0, not held and wake(queue) or nil}
end
redis.call('DEL', run)
redis.call('PEXPIRE', KEYS[5], ARGV[3])
leave_answers(7)
if ARGV[5] == 'f' then
  note(tonumber(ARGV[3]), 'attempt', attempt + 1, 'acked', ARGV[2])
  return {1, wake(queue)}
end
done = math.max(done, tonumber(ARGV[4]))
last = math.max(last, done)
local _, waiting = counts()
if waiting == 0 then redis.call('UNLINK', items) end
sweep()
local rung = wake_upto(queue, whole(done))
local woken = redis.call('ZCOUNT', queue, '-inf', whole(done)) > 0 and whole(done) or 0
if waiting > 0 then rung[#rung + 1] = wake(queue) end
note(tonumber(ARGV[3]), 'done', whole(done), 'acked', ARGV[2], 'woken', woken)
return {1, unpack(rung)}
