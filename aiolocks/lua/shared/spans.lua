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
