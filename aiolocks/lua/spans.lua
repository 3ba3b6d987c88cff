-- Readers and writers: spans of the real numbers.

--# spans
-- Spans: closed intervals [a, b] of real numbers that are held by readers (r), upgradables (u) and writers (w).
--
-- KEYS of every step   1 spans   2 ends   3 waits   4 fence   5 queue   6, 7 readers   8, 9 upgradables   10, 11 writers
--                      12, 13 reservations   14, 15 turns   16, 17 calls   18, 19 places   20 bell
--
-- The spans of holders and the marks of waiters are in pairs of sorted sets: one of left ends, one of right ends. All spans
-- but those that begin after b or end before a overlap [a, b]. So two counts tell how many overlap, however many there are.
--
-- Writers and upgradables enter in the order of asking, where their spans overlap: the first refusal gives a waiter its
-- place (q), and no later writer or upgradable enters there. A writer has a reservation (p) in the place of that while
-- nothing but readers is in its way: no earlier one waits there, and no writer and no upgradable is inside. Only a
-- reservation keeps out readers that come: before that, they would wait for nothing. A reader that waits for a writer
-- inside gets its turn (t): it passes every reservation, and no plain writer enters before it. So both sides alternate
-- where both wait. (Phase-fair reader-writer locks: Brandenburg and Anderson 2010.) An upgrade passes places, reservations
-- and turns, because their owners may be waiting for it. It lets only called waiters go first (c): readers that had their
-- turn when a writer left, and could enter then. Invariants:
-- - where nothing is held, a waiter can enter: one that has its turn, or else the first of all;
-- - a waiter with a reservation is behind no waiter, and no upgradable enters its span before it;
-- - a script adds or removes both ends of a span together: a single end hides another span from the counts;
-- - spans is a hash: token -> 'mode a b fencing-token metadata' of a holder, bell -> 'mode a b mark upgrade-of' of a waiter;
-- - ends has the deadlines of holders, waits those of waiters, ms: each has its own, and dies with its owner;
-- - ends and waits last as long as spans, and a call as long as its owner's deadline: so a step finds and removes each.
--
-- How long a waiter waits at most, if each reader holds for R, each plain writer and each upgrade for W, each upgradable
-- with its upgrades for U, and a ring is answered at once (where all spans overlap, as in an RWLock):
-- - a reader: R + W. It waits for a writer inside, or for a reservation. A reservation waits for the readers inside alone,
--   which leave within R; then its writer is inside, and the step that lets it in gives the reader its turn. From then on
--   the reader waits for that writer alone: no plain writer passes a turn, and no upgrade passes a call;
-- - an upgrade: R. Its upgradable keeps writers out, its reservation new readers, and the readers called before it hold
--   at the same time as those inside;
-- - an upgradable: those inside, and for each waiter before it R + W (a writer) or U (an upgradable). No later one enters,
--   and readers are not in its way;
-- - a writer: as an upgradable, and then R. From when nothing but readers is in its way it has a reservation, so that
--   only the readers inside, and those that were called when the last writer left, enter before it.
local SLACK = 1000  -- ms that keys outlast their entries, so that a step finds the ended ones
local spans, ends, waits, fence, queue, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[20]
local SIDES = {
  r = {KEYS[6], KEYS[7]}, u = {KEYS[8], KEYS[9]}, w = {KEYS[10], KEYS[11]},
  p = {KEYS[12], KEYS[13]}, t = {KEYS[14], KEYS[15]}, c = {KEYS[16], KEYS[17]}, q = {KEYS[18], KEYS[19]}}
local left_by_writers = {}  -- spans left by writers in this step
local asking  -- where this step hands over: the bell of the waiter that asks in it, or '' if it is a try that will not wait

-- The bounds stay texts where they are written: Lua would print only 14 digits of a number.
local function overlapping(side, a, b)
  return redis.call('ZCOUNT', SIDES[side][1], '-inf', b) - redis.call('ZCOUNT', SIDES[side][2], '-inf', '(' .. a)
end

local function add_to_side(side, id, a, b, ms)
  redis.call('ZADD', SIDES[side][1], a, id)
  redis.call('ZADD', SIDES[side][2], b, id)
  keep(SIDES[side][1], ms + SLACK)
  keep(SIDES[side][2], ms + SLACK)
end

local function remove_from_side(side, id)
  redis.call('ZREM', SIDES[side][1], id)
  redis.call('ZREM', SIDES[side][2], id)
end

-- The fields that spans has for a holder's token or a waiter's bell before its deadline, or nil.
local function read(id, deadlines, pattern)
  local deadline, span = redis.call('ZSCORE', deadlines, id), redis.call('HGET', spans, id)
  if deadline and span and tonumber(deadline) > NOW then return string.match(span, pattern) end
end

local function write(id, fields, deadlines, ms)
  redis.call('HSET', spans, id, table.concat(fields, ' '))
  redis.call('ZADD', deadlines, whole(NOW + ms), id)
  keep(spans, ms + SLACK)
  for _, key in ipairs({ends, waits}) do keep(key, redis.call('PTTL', spans)) end
end

-- Mode, a, b, fencing token and metadata of a holder, or nil.
local function holder(token) return read(token, ends, '^(%l) (%S+) (%S+) (%d+) (.*)$') end

local function write_holder(token, mode, a, b, minted, metadata, ttl)
  write(token, {mode, a, b, minted, metadata}, ends, ttl)
  add_to_side(mode, token, a, b, ttl)
end

local function remove_holder(token, mode, a, b)
  redis.call('ZREM', ends, token)
  for side in pairs(SIDES) do
    if side == mode or not mode then remove_from_side(side, token) end  -- where is unknown if spans was lost
  end
  redis.call('HDEL', spans, token)
  if mode == 'w' then left_by_writers[#left_by_writers + 1] = {tonumber(a), tonumber(b)} end
end

-- Mode, a, b, mark (p, q, t or -) and the token of the upgradable that it will upgrade (or -), of a waiter; or nil. A place is
-- written as no mark: versions of aiolocks that know no places read these entries too.
local function waiter(id)
  local mode, a, b, mark, upgrade_of = read(id, waits, '^(%l) (%S+) (%S+) (%S) (%S+)$')
  return mode, a, b, mode ~= 'r' and mark == '-' and 'q' or mark, upgrade_of
end

-- `ms`: how long the waiter and its marks last. A later deadline that the waiter has already stays. An upgradable keeps
-- its place when it is called: until it asks, no other one enters.
local function write_waiter(id, mode, a, b, mark, upgrade_of, ms)
  ms = math.max(ms, (tonumber(redis.call('ZSCORE', waits, id) or 0) or 0) - NOW)
  write(id, {mode, a, b, mark == 'q' and '-' or mark, upgrade_of}, waits, ms)
  for _, side in ipairs({'p', 'q', 't'}) do
    if side == mark or (side == 'q' and mode == 'u') then
      add_to_side(side, id, a, b, ms)
    elseif mode ~= 'r' then
      remove_from_side(side, id)
    end
  end
end

local function remove_waiter(id, seat)
  redis.call('ZREM', waits, id)
  redis.call('ZREM', queue, id .. seat)
  for _, side in ipairs({'p', 'q', 't', 'c'}) do remove_from_side(side, id) end
  redis.call('HDEL', spans, id)
end

-- Removes holders and waiters after their deadline; returns their number. `at_once`: the step must work on a server out of
-- memory. So it begins with a write that such a server allows: then the server allows the later writes of the script, too.
local function purge(seat, at_once)
  if at_once then redis.call('ZREM', ends, '') end
  local over = redis.call('ZRANGEBYSCORE', ends, '-inf', NOW)
  for _, token in ipairs(over) do
    if is_token(token) then remove_holder(token, string.match(redis.call('HGET', spans, token) or '', '^(%l) (%S+) (%S+)')) end
  end
  local gone = redis.call('ZRANGEBYSCORE', waits, '-inf', NOW)
  for _, id in ipairs(gone) do
    if is_bell(id) then remove_waiter(id, seat) end
  end
  return #over + #gone
end

-- Goes through the ids of a side that overlap [a, b], among the WALK that end first of those that do not end before a. Also
-- returns how many these are.
local function each_overlapping(side, a, b)
  local near, at = redis.call('ZRANGEBYSCORE', SIDES[side][2], a, '+inf', 'LIMIT', 0, WALK), 0
  return function()
    repeat at = at + 1
    until not near[at] or tonumber(redis.call('ZSCORE', SIDES[side][1], near[at]) or 'inf') <= tonumber(b)
    return near[at]
  end, #near
end

-- Whether a writer or an upgradable that waits has asked before this waiter (or newcomer: ''), lives, and wants a part of
-- [a, b]. Where more than WALK spans would have to be looked at, an earlier one may be among them: then it is true.
local function is_behind(id, a, b)
  if redis.call('ZCARD', queue) == 0 then return false end
  local since = tonumber(redis.call('ZSCORE', queue, id .. NO_SEAT) or 'inf')
  for _, side in ipairs({'p', 'q'}) do
    local missing = overlapping(side, a, b)
    if missing > 0 and redis.call('ZSCORE', SIDES[side][1], id) then missing = missing - 1 end
    if missing > 0 then
      local others, number = each_overlapping(side, a, b)
      for other in others do
        if other ~= id then
          local asked = redis.call('ZSCORE', queue, other .. NO_SEAT)
          local bell = asked and tonumber(asked) < since and bell_of(queue, other .. NO_SEAT)
          if bell and redis.call('GET', bell) then return true end
          missing = missing - 1
        end
      end
      if missing > 0 and number == WALK then return true end
    end
  end
end

-- Whether a waiter or newcomer cannot enter now. `passes`: no waiter goes before it, as far as is known.
local function is_blocked(id, mode, a, b, upgrade_of, passes)
  if overlapping('w', a, b) > 0 then return true end
  if mode == 'r' then return not passes and overlapping('p', a, b) > 0 end
  local upgradables = overlapping('u', a, b)
  if mode == 'w' and overlapping('r', a, b) > 0 then return true end
  if upgrade_of ~= '-' then return upgradables > 1 or overlapping('c', a, b) > 0 end  -- it upgrades one of these
  if upgradables > 0 or (mode == 'w' and overlapping('t', a, b) > 0) then return true end
  return not passes and is_behind(id, a, b)
end

-- Adds token, ms left and span of leases in the way to `found`: those within one look at WALK spans, but at most `most`.
local function add_blocking_leases(mode, a, b, upgrade_of, most, found)
  local sides = mode == 'r' and 'w' or mode == 'u' and 'wu' or upgrade_of == '-' and 'wur' or 'wr'
  for side in string.gmatch(sides, '.') do
    local missing = overlapping(side, a, b)
    if missing > 0 then
      -- Writers and upgradables do not overlap each other: there, the first span that does not end before a is in the way.
      for token in each_overlapping(side, a, b) do
        local left = math.max(0, (redis.call('ZSCORE', ends, token) or NOW) - NOW)
        found[#found + 1], found[#found + 2], found[#found + 3] = token, left, redis.call('HGET', spans, token)
        most, missing = most - 1, missing - 1
        if most == 0 then return found end
        if missing == 0 then break end
      end
    end
  end
  return found
end

-- Ms that a lease in the way has left, if a look at WALK spans finds one; else other waiters go first: -4 if one of them has
-- a reservation, and so waits for readers alone, or -2.
local function remaining(mode, a, b, upgrade_of)
  return add_blocking_leases(mode, a, b, upgrade_of, 1, {})[2] or (overlapping('p', a, b) > 0 and -4 or -2)
end

-- True also of a newcomer after waiters that are all dead: their marks outlast their bells, and no step wakes it when these end.
local function is_first(id, seat) return (first_living(queue, 0) or id .. seat) == id .. seat end

-- The mark of a waiter that cannot enter now. `behind`: an earlier writer or upgradable waits where it wants to be.
local function mark_of(mode, a, b, upgrade_of, behind)
  if upgrade_of ~= '-' then return 'p' end
  if mode == 'r' then return overlapping('w', a, b) > 0 and 't' or '-' end
  if mode == 'u' or behind or overlapping('u', a, b) > 0 or overlapping('w', a, b) > 0 then return 'q' end
  return 'p'
end

local function overlaps_any(found, a, b)
  for _, one in ipairs(found) do
    if one[1] <= tonumber(b) and tonumber(a) <= one[2] then return true end
  end
end

-- Goes through the queue from a rank on. Calls, that is wakes, all that may enter: side by side, those that share or do not
-- overlap; gives the waiters turns, places and reservations. A called waiter keeps its right until it asks: a writer by a
-- reservation, an upgradable by its place, which no newcomer passes, a reader by a turn, which passes the reservations of
-- later waiters. Behind a called writer of everything, nothing changes for any waiter.
-- If the walk ends and called no waiter, it wakes the next one to go on. Returns the bells rung, after those `before`.
local function wake_waiters(rank, before)
  local rung, ahead, whole_queue = before or {}, {}, rank == 0
  for looked = 1, WALK + 1 do
    local entry, state = first_living(queue, rank)
    if not entry then break end
    local id = bell_of(queue, entry)
    local mode, a, b, mark, upgrade_of = waiter(id)
    if looked > WALK then
      if #rung == 0 and state == '' then ring(id) rung[1] = id end
      break
    end
    if mode then
      local had, behind = mark, false
      if mode == 'r' then
        if overlaps_any(left_by_writers, a, b) then mark = 't' end
      elseif upgrade_of == '-' then
        behind = overlaps_any(ahead, a, b) or (not whole_queue and is_behind(id, a, b))
        ahead[#ahead + 1] = {tonumber(a), tonumber(b)}
      end
      local in_turn = mode == 'r' and mark == 't'
      local passes = rank == 0 or in_turn or (mode ~= 'r' and not behind)
      local may_enter = not behind and not is_blocked(id, mode, a, b, upgrade_of, passes)
      if may_enter then
        mark = mode == 'w' and 'p' or 't'
      else
        mark = mark_of(mode, a, b, upgrade_of, behind)
      end
      if mark ~= had then write_waiter(id, mode, a, b, mark, upgrade_of, BELL_TTL) end
      if may_enter then
        if state == '' and id ~= asking then ring(id) rung[#rung + 1] = id end
        if mode == 'w' and a == '-inf' and b == 'inf' then break end
        if in_turn then add_to_side('c', id, a, b, redis.call('ZSCORE', waits, id) - NOW) end
      end
    end
    rank = rank + 1
  end
  return rung
end

--# spans_acquire
-- Takes a span, or tells how long a lease that is in the way may last.
-- Sent again with a token that already holds a span, it is the same grant with a new ttl.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…19 pairs of ends   20 bell
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 mode   6 a   7 b
--       8 token of the upgradable that it will upgrade, or -   9 lease of the marks of a waiter, ms   10 seat
--       11 flags: w will wait if refused, p passes the wakeup on, s stays in the queue, l leaves it with its bell, h is
--       told of leases in the way, if refused
-- Returns {1, fencing token, number of waiters in the queue, for how many more of the same there is room, bells rung…}
--      or {0, remaining ms (-2 or -4: other waiters go first)[, leases in the way], bells rung…}; the leases:
--      {the server's time, microseconds; ''; and of each its token, ms left, span}
--      or {0, -3} when that upgradable does not hold a span around this one
--
-- Invariants: see spans.lua; an upgradable inherits the fencing token of its upgrade.
local token, ttl, mode, a, b, upgrade_of = ARGV[1], tonumber(ARGV[2]), ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local seat, flags = ARGV[10], ARGV[11]
local others = number_in(queue)
check()
local woken = was_woken(flags, bell)
local rung = (purge(seat) > 0 or asking) and wake_waiters(0) or {}  -- waiters enter, or reserve, before a newcomer
local waits_for_it = has(flags, 'w')
local _, _, _, noted = waiter(bell)
local mark = waits_for_it and noted or '-'
if mode ~= 'r' and not redis.call('ZSCORE', queue, bell .. seat) then mark = '-' end  -- taken for dead, it has lost its place
local had, left, right, minted, metadata = holder(token)
if had then
  keep(fence, ARGV[3])
  write_holder(token, had, left, right, minted, metadata, ttl)
else
  local upgradable, described
  if upgrade_of ~= '-' then upgradable, left, right, _, described = holder(upgrade_of) end
  if upgrade_of ~= '-' and not (upgradable == 'u' and tonumber(left) <= tonumber(a) and tonumber(b) <= tonumber(right)) then
    return {0, -3}
  end
  local own
  local passes = mark == 't' or mark == 'p' or (waits_for_it and is_first(bell, seat))
  if is_blocked(waits_for_it and bell or '', mode, a, b, upgrade_of, passes) then
    if waits_for_it then
      remove_from_side('c', bell)  -- a called waiter has asked, and cannot enter after all
      local behind = mode ~= 'r' and not passes and is_behind(bell, a, b)
      mark = mark_of(mode, a, b, upgrade_of, behind)
      write_waiter(bell, mode, a, b, mark, upgrade_of, tonumber(ARGV[9]))
      own = enqueue(queue, bell, seat, has(flags, 'q'))
    end
    local rank = woken and (redis.call('ZRANK', queue, bell .. seat) or 0)
    if rank then wake_waiters(rank < WALK and 0 or rank + 1, rung) end
    rung[#rung + 1] = own
    local ms = remaining(mode, a, b, upgrade_of)
    if ms < 0 then check_ends() end
    if has(flags, 'h') then table.insert(rung, 1, add_blocking_leases(mode, a, b, upgrade_of, 8, {whole(MICROSECONDS), ''})) end
    return {0, ms, unpack(rung)}
  end
  minted = mint(fence, MICROSECONDS, ARGV[3])
  write_holder(token, mode, a, b, minted, ARGV[4], ttl)
  if upgrade_of ~= '-' then
    redis.call('HSET', spans, upgrade_of, table.concat({'u', left, right, minted, described}, ' '))
  end
end
local leaves = waits_for_it and not has(flags, 's')
if leaves and (noted or others > 0) then remove_waiter(bell, seat) end
if has(flags, 'l') or (leaves and noted) then redis.call('DEL', bell) end
wake_waiters(0, rung)
return {1, minted, others > 0 and redis.call('ZCARD', queue) or 0, mode == 'r' and 1000000 or 0, unpack(rung)}

--# hand_over_spans
-- Before spans_acquire: releases the span of a writer or an upgradable, so that one step also acquires for the next waiter of
-- the same session.
--
-- ARGV  those of spans_acquire, and then the token that is released
-- Returns {-1} when that token does not hold, or its lease has ended: then the step changes nothing
--
-- Invariant: the step does what a release that wakes and then that acquire do. A writer that it calls elsewhere has a
-- reservation, and a reader a turn, which keep the next writer out; and an upgradable that it calls elsewhere keeps out the
-- next upgradable. Only a waiter that asks in this step needs no ring. A try that will not wait is no such waiter: another
-- waiter of its session may have the same bell.
do
  local from = table.remove(ARGV)
  local mode, a, b = holder(from)
  if not mode then return {-1} end
  remove_holder(from, mode, a, b)
  keep(fence, ARGV[3])
  asking = has(ARGV[11], 'w') and bell or ''
end

--# spans_renew
-- Sets the ttl again for the token that holds a span. Never creates a span that is gone.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…19 pairs of ends   20 bell
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 seat
-- Returns 1 when renewed, 0 when the token does not hold a span, or the mark of who has freed it
if purge(ARGV[4], true) > 0 then wake_waiters(0) end
local mode, a, b, minted, metadata = holder(ARGV[1])
if not mode then return thief_of(ARGV[1]) end
write_holder(ARGV[1], mode, a, b, minted, metadata, tonumber(ARGV[2]))
keep(fence, ARGV[3])
return redis.call('HGET', spans, ARGV[1]) and 1 or 0  -- read last: a connection that tracks it is told of each later change

--# spans_release
-- Releases the span if the token holds it, and leaves the queue; then wakes the waiters that may enter.
-- The fence stays for its retention.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…19 pairs of ends   20 bell
-- ARGV  1 token   2 retention of the fence, ms   3 seat   4 flags: r wakes, l leaves the queue with its bell
-- Returns {1 when freed, 0 when the token does not hold a span, or the mark of who has freed it, bells rung…}
local purged = purge(ARGV[3], true)
local mode, a, b = holder(ARGV[1])
if mode then
  remove_holder(ARGV[1], mode, a, b)
  keep(fence, ARGV[2])
end
local leaving = has(ARGV[4], 'l')
if leaving then
  remove_waiter(bell, ARGV[3])
  redis.call('DEL', bell)
end

-- If the span of another reader covers that of this reader, its release changes nothing for any waiter.
local other = mode == 'r' and purged == 0 and not leaving and redis.call('ZRANGE', SIDES.r[1], 0, 0)[1]
if other then
  local _, left, right = holder(other)
  if left and tonumber(left) <= tonumber(a) and tonumber(b) <= tonumber(right) then return {1} end
end
local rung = {}
if has(ARGV[4], 'r') then rung = wake_waiters(0) end
return {mode and 1 or thief_of(ARGV[1]), unpack(rung)}

--# spans_owned
-- Tells whether the token holds a span.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…19 pairs of ends   20 bell
-- ARGV  1 token   2 seat
-- Returns 1 or 0
purge(ARGV[2], true)
return holder(ARGV[1]) and 1 or 0

--# spans_adopt
-- Gives a span from one token to another, with a new ttl and the new holder's metadata.
-- Sent again after it was done, it is the same success. The fencing token stays.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…19 pairs of ends   20 bell
-- ARGV  1 token that holds   2 token that will hold   3 ttl, ms   4 retention of the fence, ms   5 metadata, JSON
--       6 mode   7 a   8 b   9 seat
-- Returns the fencing token, or '' when neither token holds this span
--
-- Invariant: of several sessions that adopt with one old token, exactly one finds that token in spans.
purge(ARGV[9], true)
local token = holder(ARGV[1]) and ARGV[1] or ARGV[2]
local mode, a, b, minted = holder(token)
if mode ~= ARGV[6] or a ~= ARGV[7] or b ~= ARGV[8] then return '' end
write_holder(ARGV[2], mode, a, b, minted, ARGV[5], tonumber(ARGV[3]))  -- first: a key that is empty in between would be gone
if token ~= ARGV[2] then
  redis.call('ZREM', ends, token)
  remove_from_side(mode, token)
  redis.call('HDEL', spans, token)
end
keep(fence, ARGV[4])
return minted

--# spans_annotate
-- Changes the metadata of a span if the token holds it. Never creates a span that is gone; mode, ends, fencing token and
-- deadline stay. Sent again, it does the same.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…19 pairs of ends   20 bell
-- ARGV  1 token   2 metadata, JSON
-- Returns 1 when changed, 0 when the token does not hold a span
local mode, a, b, minted = holder(ARGV[1])
if not mode then return 0 end
redis.call('HSET', spans, ARGV[1], table.concat({mode, a, b, minted, ARGV[2]}, ' '))
return 1

--# spans_change
-- Shrinks the span that the token holds, or makes its writer a reader; then wakes the waiters that may enter.
-- Sent again after it was done, it is the same success.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…19 pairs of ends   20 bell
-- ARGV  1 token   2 mode from now on   3 a   4 b   5 seat
-- Returns {1, bells rung…}, {0} when the token does not hold a span, or {-1} when the new span is no part of the old one
--
-- Invariant: the token never holds more than before, and no other token can take its span in between.
purge(ARGV[5], true)
local mode, a, b, minted, metadata = holder(ARGV[1])
if not mode then return {0} end
if tonumber(ARGV[3]) < tonumber(a) or tonumber(ARGV[4]) > tonumber(b) then return {-1} end
if ARGV[2] ~= mode and not (mode == 'w' and ARGV[2] == 'r') then return {-1} end
local left = redis.call('ZSCORE', ends, ARGV[1]) - NOW
remove_holder(ARGV[1], mode, a, b)
write_holder(ARGV[1], ARGV[2], ARGV[3], ARGV[4], minted, metadata, left)
return {1, unpack(wake_waiters(0))}

--# spans_locked
-- Tells whether a try now would be refused.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…19 pairs of ends   20 bell
-- ARGV  1 mode   2 a   3 b   4 token of the upgradable that it will upgrade, or -   5 seat
-- Returns 1 or 0
check()
purge(ARGV[5], true)
return is_blocked('', ARGV[1], ARGV[2], ARGV[3], ARGV[4], false) and 1 or 0

--# force_spans
-- Frees the spans that were granted up to a fencing token, whichever tokens hold them, and wakes the waiters. The fence
-- stays, and the marks of waiters stay.
--
-- KEYS  1 spans   2 ends   3 queue   4 waits   5 fence   6… left and right ends of the spans and of the marks
-- ARGV  1 the latest fencing token that it frees   3 the mark for the holders
-- Returns {number of spans that it has freed, bells rung…}
local spans, ends, waits = KEYS[1], KEYS[2], KEYS[4]
discard_fence(KEYS[5])
local left = redis.call('PTTL', spans)
local freed = discard('hash', spans) + discard('zset', ends, waits, unpack(KEYS, 6))
for _, id in ipairs(redis.call('ZRANGE', waits, 0, -1)) do
  if not string.find(id, '.bell.', 1, true) then redis.call('ZREM', waits, id) end
end
for _, token in ipairs(redis.call('ZRANGE', ends, 0, -1)) do
  local minted = string.match(redis.call('HGET', spans, token) or '', '^%l %S+ %S+ (%d+) ')
  if is_due(minted) then
    redis.call('ZREM', ends, token)
    redis.call('HDEL', spans, token)
    tell(token, minted, left)
    freed = freed + 1
  end
end
-- It also frees entries without a deadline, which no other step would ever remove.
local function is_alone(id) return not (redis.call('ZSCORE', ends, id) or redis.call('ZSCORE', waits, id)) end
for _, id in ipairs(redis.call('HKEYS', spans)) do
  if is_alone(id) then freed = freed + redis.call('HDEL', spans, id) end
end
for i = 6, #KEYS do
  for _, id in ipairs(redis.call('ZRANGE', KEYS[i], 0, -1)) do
    if is_alone(id) then redis.call('ZREM', KEYS[i], id) end
  end
end
return {freed, unpack(wake_first(KEYS[3], 16, true))}

--# mid_move_spans
-- Spans while their slot moves: a holder has entries in three sets and a hash. Other holders and waiters have entries in sets
-- that may be on the other node. So no other holder or waiter is removed, not even after its deadline.
waits, queue, bell = HIDDEN, HIDDEN, HIDDEN
purge = function() return 0 end
for i = 1, 2 do
  local mode = string.match(redis.call('HGET', spans, ARGV[i]) or '', '^%l')
  local side = mode and SIDES[mode]
  if side and not (is_here(ends) and is_here(side[1]) and is_here(side[2])) then return NOT_HERE end
end
