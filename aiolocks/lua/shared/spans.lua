-- Spans: closed intervals [a, b] of real numbers that are held by readers (r), upgradables (u) and writers (w).
--
-- KEYS of every step   1 spans   2 ends   3 waits   4 fence   5 queue   6, 7 readers   8, 9 upgradables   10, 11 writers
--                      12, 13 reservations   14, 15 turns   16, 17 calls   18 bell
--
-- The spans of holders and the marks of waiters are in pairs of sorted sets: one of left ends, one of right ends. All spans
-- but those that begin after b or end before a overlap [a, b]. So two counts tell how many overlap, however many there are.
--
-- A waiting writer reserves its span (p): from then on no reader, upgradable or other writer enters there. The first of
-- all waiters passes the reservations of others, so that narrow spans do not hold up a wide one for ever. A reader or
-- upgradable that waits for a writer inside gets its turn (t): it passes every reservation, and no writer enters before
-- it. So both sides alternate where both wait, and neither starves. (Phase-fair reader-writer locks: Brandenburg and
-- Anderson 2010.) The first refusal gives a waiter its place in the order. An upgrade passes reservations and turns,
-- because their owners may be waiting for it. It lets only called waiters go first (c): readers that had their turn when
-- a writer left, and could enter then. Invariants:
-- - where nothing is held, a waiter can enter: one that has its turn, or else the first of all;
-- - a script adds or removes both ends of a span together: a single end hides another span from the counts;
-- - spans is a hash: token -> 'mode a b fencing-token metadata' of a holder, bell -> 'mode a b mark upgrade-of' of a waiter;
-- - ends has the deadlines of holders, waits those of waiters, ms: each has its own, and dies with its owner;
-- - ends and waits last as long as spans, and a call as long as its owner's deadline: so a step finds and removes each.
local SLACK = 1000  -- ms that keys outlast their entries, so that a step finds the ended ones
local spans, ends, waits, fence, queue, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[18]
local SIDES = {
  r = {KEYS[6], KEYS[7]}, u = {KEYS[8], KEYS[9]}, w = {KEYS[10], KEYS[11]},
  p = {KEYS[12], KEYS[13]}, t = {KEYS[14], KEYS[15]}, c = {KEYS[16], KEYS[17]}}
local left_by_writers, called_upgradable = {}, nil  -- spans left by writers in this step; bell called by the last walk
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

-- Mode, a, b, mark (p, t or -) and the token of the upgradable that it will upgrade (or -), of a waiter; or nil.
local function waiter(id) return read(id, waits, '^(%l) (%S+) (%S+) (%S) (%S+)$') end

-- `ms`: how long the waiter and its marks last. A later deadline that the waiter has already stays.
local function write_waiter(id, mode, a, b, mark, upgrade_of, ms)
  ms = math.max(ms, (tonumber(redis.call('ZSCORE', waits, id) or 0) or 0) - NOW)
  write(id, {mode, a, b, mark, upgrade_of}, waits, ms)
  if mark ~= '-' then add_to_side(mark, id, a, b, ms) end
end

local function remove_waiter(id, seat)
  redis.call('ZREM', waits, id)
  redis.call('ZREM', queue, id .. seat)
  for _, side in ipairs({'p', 't', 'c'}) do remove_from_side(side, id) end
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

-- Whether a waiter or newcomer with this mark cannot enter now. `first`: no other waiter has waited for longer.
local function is_blocked(mode, a, b, mark, upgrade_of, first)
  local writers, upgradables, passes = overlapping('w', a, b), overlapping('u', a, b), first or mark == 't'
  if writers > 0 then return true end
  if mode == 'r' then return not passes and overlapping('p', a, b) > 0 end
  if mode == 'u' then return upgradables > 0 or (not passes and overlapping('p', a, b) > 0) end
  if overlapping('r', a, b) > 0 then return true end
  if upgrade_of ~= '-' then return upgradables > 1 or overlapping('c', a, b) > 0 end  -- it upgrades one of these
  if upgradables > 0 or overlapping('t', a, b) > 0 then return true end
  return not first and overlapping('p', a, b) > (mark == 'p' and 1 or 0)
end

-- Adds token, ms left and span of leases in the way to `found`: those within one look at WALK spans, but at most `most`.
local function add_blocking_leases(mode, a, b, upgrade_of, most, found)
  local sides = mode == 'r' and 'w' or mode == 'u' and 'wu' or upgrade_of == '-' and 'wur' or 'wr'
  for side in string.gmatch(sides, '.') do
    local missing = overlapping(side, a, b)
    if missing > 0 then
      -- Writers and upgradables do not overlap each other: there, the first span that does not end before a is in the way.
      for _, token in ipairs(redis.call('ZRANGEBYSCORE', SIDES[side][2], a, '+inf', 'LIMIT', 0, WALK)) do
        if tonumber(redis.call('ZSCORE', SIDES[side][1], token) or 'inf') <= tonumber(b) then
          local left = math.max(0, (redis.call('ZSCORE', ends, token) or NOW) - NOW)
          found[#found + 1], found[#found + 2], found[#found + 3] = token, left, redis.call('HGET', spans, token)
          most, missing = most - 1, missing - 1
          if most == 0 then return found end
          if missing == 0 then break end
        end
      end
    end
  end
  return found
end

-- Ms that a lease in the way has left, if a look at WALK spans finds one; -2 when other waiters go first.
local function remaining(mode, a, b, upgrade_of) return add_blocking_leases(mode, a, b, upgrade_of, 1, {})[2] or -2 end

-- True also of a newcomer after waiters that are all dead: their marks outlast their bells, and no step wakes it when these end.
local function is_first(id, seat) return (first_living(queue, 0) or id .. seat) == id .. seat end

-- Whether a waiter gets its turn if a writer is inside or has just left. An upgradable gets none from an upgrade: else
-- upgradables could come and go for ever before a writer.
local function gets_turn(mode, a, b)
  return mode == 'r' or (mode == 'u' and overlapping('u', a, b) == 0)
end

-- The next mark of a waiter that has `mark` and cannot enter now.
local function next_mark(mode, a, b, mark, upgrade_of, first)
  if mark ~= '-' then return mark end
  if mode ~= 'w' then return overlapping('w', a, b) > 0 and gets_turn(mode, a, b) and 't' or '-' end
  return (upgrade_of ~= '-' or first or overlapping('p', a, b) == 0) and 'p' or '-'
end

local function has_writer_left(a, b)
  for _, left in ipairs(left_by_writers) do
    if left[1] <= tonumber(b) and tonumber(a) <= left[2] then return true end
  end
end

-- Goes through the queue from a rank on. Calls, that is wakes, all readers that may enter and one upgradable, up to the first
-- writer that may, which it calls too; gives the waiters turns and reservations. A called waiter keeps its right until it asks:
-- a writer by a reservation, which no newcomer passes, any other by a turn, which passes the reservations of later waiters.
-- If the walk ends and called no waiter, it wakes the next one to go on. Returns the bells rung, after those `before`.
local function wake_waiters(rank, before)
  local rung = before or {}
  called_upgradable = nil
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
      local first, had = rank == 0, mark
      if mark == '-' and has_writer_left(a, b) and gets_turn(mode, a, b) then mark = 't' end
      local in_turn = mark == 't'
      local may_enter = not is_blocked(mode, a, b, mark, upgrade_of, first) and (mode == 'r' or not called_upgradable)
      if not may_enter then mark = next_mark(mode, a, b, mark, upgrade_of, first) end
      if may_enter and mark == '-' then mark = mode == 'w' and 'p' or 't' end
      if mark ~= had then write_waiter(id, mode, a, b, mark, upgrade_of, BELL_TTL) end
      if may_enter then
        if state == '' and id ~= asking then ring(id) rung[#rung + 1] = id end
        if mode == 'w' then break end
        if mode == 'u' then called_upgradable = id end
        if mode == 'r' and in_turn then add_to_side('c', id, a, b, redis.call('ZSCORE', waits, id) - NOW) end
      end
    end
    rank = rank + 1
  end
  return rung
end
