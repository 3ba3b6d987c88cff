-- Spans: closed intervals [a, b] of real numbers that are held by readers (r), upgradables (u) and writers (w).
--
-- KEYS of every step   1 spans   2 ends   3 waits   4 fence   5 queue   6, 7 readers   8, 9 upgradables   10, 11 writers
--                      12, 13 reservations   14, 15 turns   16, 17 calls   18 bell
--
-- The spans of holders, and the marks of those who wait, stand in a pair of sorted sets each: of left and of right
-- ends. All spans but those that begin behind b or end before a overlap [a, b]: two counts, whatever number there is.
--
-- A writer that waits reserves (p): from then on no reader, upgradable or other writer enters where it wants to. The
-- first of all that wait passes the reservations of others, so that a wide span is not held up by narrow ones for
-- ever. A reader or upgradable that waits for a writer inside gets its turn (t): it passes every reservation, and no
-- writer enters before it. So both sides alternate where both wait, and neither starves. (Phase-fair reader-writer
-- locks: Brandenburg and Anderson 2010.) The first refusal gives a waiter its place in the order. An upgrade passes
-- reservations and turns, whose owners may be waiting for it. It lets only those go first who were called (c): readers
-- whose turn it was when a writer left, and who could enter then. Invariants:
-- - where nothing is held, somebody can enter: a waiter that has its turn, or else the first of all that wait;
-- - left and right ends of a span stand and go together, in one script: what stands in one set only hides another;
-- - spans is a hash: token -> 'mode a b fencing-token metadata' of a holder, bell -> 'mode a b mark under' of a waiter;
-- - ends are the holders' deadlines, waits those of the waiters, ms: each has its own, and dies with its owner;
-- - ends and waits last as long as spans, and a call as long as its owner's deadline: so every entry here is found by its
--   deadline, and removed.
local SLACK = 1000  -- ms that keys outlast what stands in them, so that it is found to have come to its end
local spans, ends, waits, fence, queue, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[18]
local SIDES = {
  r = {KEYS[6], KEYS[7]}, u = {KEYS[8], KEYS[9]}, w = {KEYS[10], KEYS[11]},
  p = {KEYS[12], KEYS[13]}, t = {KEYS[14], KEYS[15]}, c = {KEYS[16], KEYS[17]},
}
local departed = {}  -- spans that writers have left in this step

-- Bounds are never made numbers to be written: Lua would print 14 digits of them.
local function overlapping(side, a, b)
  return redis.call('ZCOUNT', SIDES[side][1], '-inf', b) - redis.call('ZCOUNT', SIDES[side][2], '-inf', '(' .. a)
end

local function put(side, id, a, b, ms)
  redis.call('ZADD', SIDES[side][1], a, id)
  redis.call('ZADD', SIDES[side][2], b, id)
  keep(SIDES[side][1], ms + SLACK)
  keep(SIDES[side][2], ms + SLACK)
end

local function take(side, id)
  redis.call('ZREM', SIDES[side][1], id)
  redis.call('ZREM', SIDES[side][2], id)
end

-- The fields in spans of an owner whose deadline has not passed.
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

local function hold(token, mode, a, b, minted, metadata, ttl)
  write(token, {mode, a, b, minted, metadata}, ends, ttl)
  put(mode, token, a, b, ttl)
end

local function let_go(token, mode, a, b)
  redis.call('ZREM', ends, token)
  for side in pairs(SIDES) do
    if side == mode or not mode then take(side, token) end  -- not known where, if spans was lost
  end
  redis.call('HDEL', spans, token)
  if mode == 'w' then departed[#departed + 1] = {tonumber(a), tonumber(b)} end
end

-- Mode, a, b, mark (p, t or -) and token of the upgradable that will be upgraded (or -), of a waiter; or nil.
local function waiter(of) return read(of, waits, '^(%l) (%S+) (%S+) (%S) (%S+)$') end

-- `ms`: how long its marks last; no shorter than they would have anyway.
local function wait(of, mode, a, b, mark, under, ms)
  ms = math.max(ms, (tonumber(redis.call('ZSCORE', waits, of) or 0) or 0) - NOW)
  write(of, {mode, a, b, mark, under}, waits, ms)
  if mark ~= '-' then put(mark, of, a, b, ms) end
end

local function forget(of, seat)
  redis.call('ZREM', waits, of)
  redis.call('ZREM', queue, of .. seat)
  for _, side in ipairs({'p', 't', 'c'}) do take(side, of) end
  redis.call('HDEL', spans, of)
end

-- Removes what has come to its end; how much that was. `at_once`: it is the first write of a step that must not be
-- refused by a server that is out of memory; what a script writes behind such a one is allowed as well.
local function purge(seat, at_once)
  if at_once then redis.call('ZREM', ends, '') end
  local over = redis.call('ZRANGEBYSCORE', ends, '-inf', NOW)
  for _, token in ipairs(over) do
    if is_token(token) then let_go(token, string.match(redis.call('HGET', spans, token) or '', '^(%l) (%S+) (%S+)')) end
  end
  local gone = redis.call('ZRANGEBYSCORE', waits, '-inf', NOW)
  for _, of in ipairs(gone) do
    if is_bell(of) then forget(of, seat) end
  end
  return #over + #gone
end

-- Whether that one cannot enter now, with the mark that it has. `first`: nobody has waited for longer.
local function blocked(mode, a, b, mark, under, first)
  local writers, upgradables, passes = overlapping('w', a, b), overlapping('u', a, b), first or mark == 't'
  if writers > 0 then return true end
  if mode == 'r' then return not passes and overlapping('p', a, b) > 0 end
  if mode == 'u' then return upgradables > 0 or (not passes and overlapping('p', a, b) > 0) end
  if overlapping('r', a, b) > 0 then return true end
  if under ~= '-' then return upgradables > 1 or overlapping('c', a, b) > 0 end  -- one of them is its own
  if upgradables > 0 or overlapping('t', a, b) > 0 then return true end
  return not first and overlapping('p', a, b) > (mark == 'p' and 1 or 0)
end

-- Adds token, ms left and span of leases in the way, as many as are found at once, but at most `most`.
local function in_the_way(mode, a, b, under, most, found)
  local sides = mode == 'r' and 'w' or mode == 'u' and 'wu' or under == '-' and 'wur' or 'wr'
  for side in string.gmatch(sides, '.') do
    local missing = overlapping(side, a, b)
    if missing > 0 then
      -- Of writers and upgradables, which do not overlap each other, the first that does not end before a.
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

-- Ms that one of the leases in the way has left, as far as one is found at once; -2 when it is others who wait.
local function remaining(mode, a, b, under) return in_the_way(mode, a, b, under, 1, {})[2] or -2 end

-- Also of a newcomer where all that waited are dead: their marks outlast their bells, and no step wakes it for these.
local function is_first(of, seat) return (first_living(queue, 0) or of .. seat) == of .. seat end

-- Whether it gets its turn, waiting for a writer inside or one that has just left. No upgradable gets it from an
-- upgrade: then others could come and go for ever before a writer.
local function has_turn(mode, a, b)
  return mode == 'r' or (mode == 'u' and overlapping('u', a, b) == 0)
end

-- The mark of a waiter that has to wait now, and had this one.
local function mark_of(mode, a, b, mark, under, first)
  if mark ~= '-' then return mark end
  if mode ~= 'w' then return overlapping('w', a, b) > 0 and has_turn(mode, a, b) and 't' or '-' end
  return (under ~= '-' or first or overlapping('p', a, b) == 0) and 'p' or '-'
end

local function was_left(a, b)
  for _, left in ipairs(departed) do
    if left[1] <= tonumber(b) and tonumber(a) <= left[2] then return true end
  end
end

-- Goes through the queue from a rank on: calls all readers that may enter and one upgradable, up to and with the first
-- writer that may, and gives the waiters their turns and reservations. A called waiter keeps its right until it comes: a
-- writer by a reservation, which no newcomer passes, any other by a turn, which passes the reservation of a later waiter.
-- A waiter that stands after the end of the walk is woken to go on with it. Returns the bells rung, after those `before`.
local function settle(rank, before)
  local rung, upgradable_called = before or {}, false
  for looked = 1, WALK + 1 do
    local entry, state = first_living(queue, rank)
    if not entry then break end
    local of = bell_of(queue, entry)
    local mode, a, b, mark, under = waiter(of)
    if looked > WALK then
      if #rung == 0 and state == '' then ring(of) rung[1] = of end
      break
    end
    if mode then
      local first, had = rank == 0, mark
      if mark == '-' and was_left(a, b) and has_turn(mode, a, b) then mark = 't' end
      local in_turn = mark == 't'
      local may_enter = not blocked(mode, a, b, mark, under, first) and (mode == 'r' or not upgradable_called)
      if not may_enter then mark = mark_of(mode, a, b, mark, under, first) end
      if may_enter and mark == '-' then mark = mode == 'w' and 'p' or 't' end
      if mark ~= had then wait(of, mode, a, b, mark, under, BELL_TTL) end
      if may_enter then
        if state == '' then ring(of) rung[#rung + 1] = of end
        if mode == 'w' then break end
        if mode == 'u' then upgradable_called = true end
        if mode == 'r' and in_turn then put('c', of, a, b, redis.call('ZSCORE', waits, of) - NOW) end
      end
    end
    rank = rank + 1
  end
  return rung
end
