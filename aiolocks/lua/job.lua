-- Jobs that run once, and their tickets.

--# tickets
-- Tickets of a job: which ticket owns the job's key, and which tickets are over.
--
-- Invariants:
-- - a ticket is 'id.ttl, ms'. Key owner holds the ticket that owns the job's key: while that key lasts, all other tickets
--   that have not begun are duplicates;
-- - over is a sorted set of tickets by the time when each is forgotten, ms, with a letter before each. Tickets that must not
--   run any more have a d if they were done, and an s if another ticket has taken their place. A ticket that gave up its
--   key when it began has a b. A ticket whose run keeps the key for longer has an e, until its own time with the key ends;
-- - about is a hash from tickets to metadata, JSON: of the owner, also after its time with the key, until the next ticket
--   finds the key free; and of the tickets in `before`, which may own the key again. It lasts for as long as the owner does,
--   or longer;
-- - a ticket that gave up its key and was not done may run again, whichever ticket owns the key by then: the job of that
--   other ticket may never come to a worker.

local function is_listed(over, letter, ticket)
  return tonumber(redis.call('ZSCORE', over, letter .. ticket) or 0) > NOW
end

-- The ticket that owns the key, or false.
local function owning_ticket(owner)
  local ticket = redis.call('GET', owner)
  if ticket and not string.find(ticket, '^' .. string.rep('[%w_-]', 22) .. '%.%d+$') then reject_foreign(owner) end
  return ticket
end

-- Why a ticket is over: d or s; or nil if it is not.
local function why_over(over, ticket)
  for _, letter in ipairs({'d', 's'}) do
    if is_listed(over, letter, ticket) then return letter end
  end
end

local function ttl_of(ticket) return tonumber(string.match(ticket, '%d+$')) end

-- For the ttl of the ticket, and for at least that many ms: a request that is sent again must find it there.
-- Writes with ZREMRANGEBYSCORE first: a server out of memory allows that, and then the later writes of the script as well.
local function remember(over, letter, ticket, ms)
  local lasts = math.max(ttl_of(ticket), ms)
  redis.call('ZREMRANGEBYSCORE', over, '-inf', NOW)
  redis.call('ZADD', over, whole(NOW + lasts), letter .. ticket)
  keep(over, lasts)
end

-- Notes when the ticket's own time with its key ends, before a run keeps the key for longer. Without a key, it notes nothing.
local function remember_end(over, ticket, left)
  redis.call('ZADD', over, 'NX', whole(NOW + left), 'e' .. ticket)
  keep(over, left)
end

-- Keeps the key of a ticket, and its metadata, for at least that many ms.
local function keep_key(owner, about, ms)
  keep(owner, ms)
  keep(about, ms)
end

local function free_key(owner, about, ticket)
  redis.call('DEL', owner)
  redis.call('HDEL', about, ticket)
end

-- Why a ticket must not run: d or s as above, o if another ticket owns its key; or nil.
local function why_duplicate(owner, over, ticket)
  local owning = owning_ticket(owner)
  local owned_by_another = owning and owning ~= ticket and not is_listed(over, 'b', ticket)
  return why_over(over, ticket) or (owned_by_another and 'o')
end

-- The end of the ticket's own time with its key as it was noted, or 0 if that was forgotten.
local function remembered_end(over, ticket)
  return tonumber(redis.call('ZSCORE', over, 'e' .. ticket) or 0)
end

--# runs
-- Runs of a job: as many at once as its limit allows, and each ticket once at a time.
--
-- KEYS of every step, besides those of permits   7 owner   8 over   and of a ticket   10 run   11 about
--
-- Invariants:
-- - value holds the limit of the runs that go on, for as long as they do: while none goes on, a run with any limit may begin;
-- - run holds the token that runs the ticket, and is valid while that token has its lease: so no two runs of one ticket
--   go on at once, whatever the limit.
local owner, over, run, about = KEYS[7], KEYS[8], KEYS[10], KEYS[11]

-- The limit of the runs that go on, if it differs from `limit`.
local function other_limit(limit)
  local current = redis.call('ZCARD', holders) > 0 and redis.call('HGET', value, 'current')
  return current and current ~= limit and (tonumber(current) or reject_foreign(value))
end

-- When the lease of the token that runs the ticket ends, ms, or false.
local function busy_until()
  local runner = run and redis.call('GET', run)
  if runner and not is_token(runner) then reject_foreign(run) end
  return runner and redis.call('ZSCORE', holders, runner)
end

-- Gives the token its run, or prolongs the run.
local function hold_run(token, minted, metadata, limit, ttl, retention)
  hold(token, 1, minted, metadata, ttl)
  redis.call('HSET', value, 'current', limit)
  keep(value, ttl + SLACK)
  keep(fence, retention)
  if run then redis.call('SET', run, token, 'PX', ttl) end
end

-- Changes the key of a ticket that begins: gives it up (g), or keeps it (k) for at least `ms`, but only while it runs (e).
local function begin_ticket(ticket, how, ms)
  local owns = redis.call('GET', owner) == ticket
  if has(how, 'g') then
    remember(over, 'b', ticket, 0)  -- a request that is sent again finds the run
    if owns then free_key(owner, about, ticket) end
  else
    local left = redis.call('PTTL', owner)
    if has(how, 'e') then remember_end(over, ticket, left) end
    redis.call('SET', owner, ticket, 'PX', math.max(left, ms))
    keep(about, ms)
  end
end

-- Settles a ticket that has ended: it was done (d), and its key is freed (f); or it was not, and its key is kept for the
-- retry (k); or the key has its own time again (e). `known`: for how long it is known at least that it was done, ms.
local function end_ticket(ticket, how, known)
  local owns = redis.call('GET', owner) == ticket
  if owns and has(how, 'e') then redis.call('PEXPIRE', owner, remembered_end(over, ticket) - NOW) end
  if has(how, 'd') then
    remember(over, 'd', ticket, known)
    redis.call('ZREM', over, 'b' .. ticket)
  end
  if owns and has(how, 'f') then free_key(owner, about, ticket) end
  if owns and has(how, 'k') then keep_key(owner, about, ttl_of(ticket)) end
end

--# room
-- Room to wait in: at most `room` callers may wait, and one more is a duplicate of a living waiter.
--
-- Invariants:
-- - seen is a hash with a number for each waiter in the queue that has asked: of a waiter that may wait, the number of its
--   last question; of one that must still make sure, less than 0, that of its first; 0 of a waiter with a ticket. Field
--   count is the last number given, and begun is the number of the last run that began. These are numbers and not times,
--   because the server's clock may be set back;
-- - a newcomer is refused only because after it came, waiters that may wait have asked, or a run has begun: dead waiters
--   stay in the queue for a while, and their jobs may be delivered again before they leave it;
-- - a newcomer that must still make sure of that takes a seat as well, after those waiters;
-- - a waiter that must still make sure takes no newcomer's place, not even in its own session: it may be refused itself,
--   because of a run that began before the newcomer came, and then nothing would run for that newcomer;
-- - a waiter with a ticket may always wait, and takes no newcomer's place: if another delivery does its ticket, or another
--   ticket takes its key, the waiter leaves without a run, and then nothing would run for that newcomer.
local SEEN_TTL = 600000  -- far longer than a waiter sleeps between two tries

local function read_number(seen, field) return tonumber(redis.call('HGET', seen, field) or 0) end

local function assign_number(seen, field, sign)
  redis.call('HSET', seen, field, sign * redis.call('HINCRBY', seen, 'count', 1))
  redis.call('PEXPIRE', seen, SEEN_TTL)
end

-- Whether the caller may wait: 'w' it may, 't' it may with its ticket, 'd' it must first make sure that others live, 'f' it is
-- one too many; and the bells that were rung. Waiters of its own session live: once they may wait, they are not asked.
local function find_room(seen, room, entry, session, ticket)
  if ticket ~= '' then return 't', {} end
  local number = read_number(seen, entry)
  if room == '' or number > 0 then return 'w', {} end
  if number < 0 and read_number(seen, 'begun') > -number then return 'f', {} end
  local unsure, rung, places = {}, {}, tonumber(room)
  for rank = 0, number_in(queue) do
    if places == 0 then break end
    local other = first_living(queue, rank)
    if not other or other == entry then return 'w', {} end
    if redis.call('HGET', seen, other) ~= '0' then
      local asked = read_number(seen, other)
      local lives = number < 0 and asked > -number or asked > 0 and string.find(other, session, 1, true)
      if not lives then unsure[#unsure + 1] = bell_of(queue, other) end
      places = places - 1
    end
  end
  for _, bell in ipairs(unsure) do
    if redis.call('GET', bell) == '' then
      ring(bell)
      rung[#rung + 1] = bell
    end
  end
  return #unsure > 0 and 'd' or 'f', rung
end

-- Notes that the waiter has asked. Wakes the waiters that must make sure that it lives, and adds their bells to `rung`.
local function check_in(seen, entry, admission, rung)
  if admission == 'd' then
    if read_number(seen, entry) == 0 then assign_number(seen, entry, -1) end
    return
  end
  assign_number(seen, entry, admission == 't' and 0 or 1)
  for _, other in ipairs(redis.call('ZRANGE', queue, 0, WALK)) do
    local bell = read_number(seen, other) < 0 and bell_of(queue, other)
    if bell and redis.call('GET', bell) == '' then
      ring(bell)
      rung[#rung + 1] = bell
    end
  end
end

-- Forgets a waiter that has left the queue, and notes whether its run has `begun` just now.
local function check_out(seen, entry, begun)
  redis.call('HDEL', seen, entry)
  if redis.call('ZCARD', queue) == 0 then
    redis.call('DEL', seen)
  elseif begun then
    assign_number(seen, 'begun', 1)
  end
end

--# job_acquire
-- Takes a running slot of a job, or gives the caller a seat to wait for one, or finds that the call is a duplicate.
-- Sent again with the token that already runs, it is the same grant with a new ttl: nothing is decided again.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell   7 owner   8 over   9 seen
--       and of a ticket   10 run   11 about
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 seat   6 flags: q has a bell,
--       l takes the bell along, a no other waiter shares the bell, h is told of the holders, if refused, b takes a seat
--       only, for others of its session go first
--       7 how many may wait, or '' for any number   8 ticket, or '' for none
--       9 change of the ticket's key as the run begins: g given up, k kept, e only until the run ends, then for its own time
--       10 the text that the names of all bells of the session contain   11 limit: how many may run at once
-- Returns {1, fencing token, how many wait in the queue, 0, bells rung…}
--      or {0, remaining ms (-2: other waiters go first)[, holders], bells rung…}
--      or {2, why it is a duplicate: f as many wait as may, d done, s superseded, o another ticket owns the key, e so it does
--          and the key has no ttl, bells rung…}
--      or {3, the limit of the runs that go on, if it differs}
--
-- Invariants: no run begins while a living waiter of another bell is before it; a waiter whose run begins has left the
-- queue, so that a later waiter finds room; each run that begins wakes the next waiter while there are slots.
local token, ttl, seat, flags, ticket = ARGV[1], tonumber(ARGV[2]), ARGV[5], ARGV[6], ARGV[8]
local entry, others = bell .. seat, number_in(queue)

purge()
local limit = other_limit(ARGV[11])
if limit then return {3, limit} end
local permits, minted, metadata = lease_of(token)
if not permits then
  local duplicate = ticket ~= '' and why_duplicate(owner, over, ticket)
  local first, busy = first_living(queue, 0), busy_until()
  local in_turn, slot = not first or bell_of(queue, first) == bell, not busy and free() > 0
  if not duplicate and (has(flags, 'b') or not (slot and in_turn)) then
    local room = slot and ARGV[7] == '0' and '1' or ARGV[7]  -- a slot is free, and the first waiter may have no run to begin
    local admission, rung = find_room(KEYS[9], room, entry, ARGV[10], ticket)
    if admission ~= 'f' then
      rung[#rung + 1] = enqueue(queue, bell, seat, has(flags, 'q'))
      check_in(KEYS[9], entry, admission, rung)
      rung[#rung + 1] = wake(true, 0, entry)[1]
      if has(flags, 'h') then table.insert(rung, 1, describe_holders()) end
      local ends = busy or (free() < 1 and redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2])
      return {0, ends and math.max(0, ends - NOW) or -2, unpack(rung)}
    end
    duplicate = 'f'
  end
  if duplicate then
    if duplicate == 'o' and redis.call('PTTL', owner) < 0 then duplicate = 'e' end
    dequeue(queue, bell, seat, has(flags, 'l'), has(flags, 'a'))
    check_out(KEYS[9], entry, false)
    return {2, duplicate, unpack(wake(true, 0))}
  end
  if ticket ~= '' then begin_ticket(ticket, ARGV[9], ttl) end
  minted, metadata = mint(fence, MICROSECONDS, ARGV[3]), ARGV[4]
end
hold_run(token, minted, metadata, ARGV[11], ttl, ARGV[3])
dequeue(queue, bell, seat, has(flags, 'l'), has(flags, 'a'))
check_out(KEYS[9], entry, not permits)
local rung = wake(true, 0)
return {1, minted, others > 0 and redis.call('ZCARD', queue) or 0, 0, unpack(rung)}

--# job_renew
-- Sets the ttl again for the token that runs, and keeps the key of its ticket for as long. Never creates a lease that is gone.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell   7 owner   8 over
--       and of a ticket   10 run   11 about
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 ticket, or '' for none   5 limit
-- Returns 1 when renewed, 0 when the token does not run
if purge(true) > 0 then wake(true, 0) end
local permits, minted, metadata = lease_of(ARGV[1])
if not permits then return 0 end
hold_run(ARGV[1], minted, metadata, ARGV[5], tonumber(ARGV[2]), ARGV[3])
if redis.call('GET', owner) == ARGV[4] then keep_key(owner, about, ARGV[2]) end
-- Read last: a connection that tracks it is told of each later change.
return redis.call('ZCARD', holders) > 0 and 1 or 0

--# job_release
-- Gives the running slot back if the token runs, settles its ticket, and leaves the queue; then wakes the next waiter.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell   7 owner   8 over   9 seen
--       and of a ticket   10 run   11 about
-- ARGV  1 token   2 retention of the fence, ms   3 seat   4 flags: r wakes the next waiter, l leaves the queue with its
--       bell, a no other waiter shares the bell, d the ticket was done, f its key is freed, k it was not done and its key is
--       kept for the retry, e its key has its own time again   5 ticket   6 for how long it is known at least that the
--       ticket was done, ms
-- Returns {1 when freed, 0 when the token does not run, bells rung…}
--
-- Invariant: only a token that has run the ticket without a gap until here notes that the ticket was done.
local flags, ticket = ARGV[4], ARGV[5]
purge(true)
local held = lease_of(ARGV[1])
if held then
  drop(ARGV[1])
  keep(fence, ARGV[2])
  if run then end_ticket(ticket, flags, ARGV[6]) end
end
if run and redis.call('GET', run) == ARGV[1] then redis.call('DEL', run) end
dequeue(queue, bell, ARGV[3], has(flags, 'l'), has(flags, 'a'))
local rung = {}
if has(flags, 'r') then rung = wake(true, 0) end
check_out(KEYS[9], bell .. ARGV[3], false)  -- last: dead waiters have been dropped from the queue then
return {held and 1 or 0, unpack(rung)}

--# job_enqueue
-- Makes a ticket the owner of a job's key, or says for how long another one owns it.
-- Sent again with the ticket that owns the key, it is the same success with a new ttl. Sent again with a ticket whose
-- place another ticket has taken since, it changes nothing.
--
-- KEYS  1 owner   2 over   3 before   4 about
-- ARGV  1 ticket   2 ttl, ms   3 flag: r takes the place of another   4 metadata, JSON   5 for how long it is known at least
--       which place the ticket has taken, ms   6 of how many that is known at most
-- Returns -1 when the ticket owns or has owned the key, or for how many more ms another ticket owns it (0: without an end)
--
-- Invariants:
-- - before is a sorted set of the tickets whose place others have taken since the key was free, by the time of that (µs), each
--   with the end of the time for which it would have owned the key: 'ticket:ms'. Of more than LEAST_KEPT, the oldest are
--   forgotten once they are known for long enough: a ticket is taken back only for so long. Where one that is younger would
--   have to be forgotten, no ticket takes the place of another;
-- - sent again after its own time with the key, a ticket still has the place of those in before.
local LEAST_KEPT = 16
local owner, over, before, about, ticket = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1]
local owning = owning_ticket(owner)
if why_over(over, ticket) then return -1 end
if not owning then
  if not redis.call('HGET', about, ticket) then redis.call('DEL', before, about) end
elseif owning ~= ticket then
  local left = redis.call('PTTL', owner)
  if ARGV[3] ~= 'r' then return left < 0 and 0 or math.max(1, left) end
  local number = redis.call('ZCARD', before)
  local since, too_many = whole(MICROSECONDS - ARGV[5] * 1000), math.max(0, math.min(2, number + 1 - LEAST_KEPT))
  local forgotten = redis.call('ZRANGEBYSCORE', before, '-inf', since, 'LIMIT', 0, too_many)
  if number >= tonumber(ARGV[6]) and not forgotten[1] then error('CROWDED ' .. ARGV[6], 0) end
  redis.call('ZADD', before, whole(MICROSECONDS), owning .. ':' .. whole(NOW + left))
  for _, oldest in ipairs(forgotten) do
    redis.call('ZREM', before, oldest)
    redis.call('HDEL', about, string.match(oldest, '^(.*):'))
  end
  keep(before, left)
  remember(over, 's', owning, ARGV[5])
end
redis.call('SET', owner, ticket, 'PX', ARGV[2])
redis.call('HSET', about, ticket, ARGV[4])
keep(about, ARGV[2])
return -1

--# job_withdraw
-- Takes back a ticket that no process knows of. If it owns the key, or was the last to own it, the ticket before it owns the
-- key again; if that one was done meanwhile, then only for the rest of its own time with the key (e in over), which it keeps
-- also when it is done. If another ticket has taken the place of the ticket, the ticket will not own the key again.
--
-- KEYS  1 owner   2 over   3 before   4 about
-- ARGV  1 ticket
-- Returns 1 when the ticket owned the key, or was the last to own it, or 0
local owner, over, before, ticket = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local is_known = redis.call('HDEL', KEYS[4], ticket) == 1
local owning = redis.call('GET', owner)
if owning ~= ticket then
  local was_last = is_known and not owning  -- its own time with the key is over, and no ticket has come since
  for _, entry in ipairs(redis.call('ZRANGE', before, 0, -1)) do
    if string.sub(entry, 1, #ticket + 1) == ticket .. ':' then was_last = redis.call('ZREM', before, entry) == 0 end
  end
  if not was_last then return 0 end
end
redis.call('DEL', owner)
local last = redis.call('ZRANGE', before, -1, -1)[1]
if last then
  local former, ends = string.match(last, '^(.*):(%d+)$')
  redis.call('ZREM', before, last)
  redis.call('ZREM', over, 's' .. former)
  if why_over(over, former) then ends = remembered_end(over, former) end
  if ends - NOW > 0 then redis.call('SET', owner, former, 'PX', whole(ends - NOW)) end
end
return 1

--# mid_move_runs
-- Runs of a job while their slot moves. A run needs the keys of permits, with the limit, and the key that tells which token
-- runs its ticket.
queue, bell = HIDDEN, HIDDEN
local whole_lease = is_here(leases) and is_here(value) and (not run or is_here(run))
if is_here(holders) and not whole_lease or is_here(leases) and not is_here(holders) then return NOT_HERE end
