-- Spans: closed intervals [a, b] of real numbers that are held by readers (r), upgradables (u) and writers (w).
--
-- KEYS of every step   1 spans   2 ends   3 waits   4 fence   5 queue   6, 7 readers   8, 9 upgradables   10, 11 writers
--                      12, 13 reservations   14, 15 turns   16 bell
--
-- What is held, and two marks of those who wait, stand in a pair of sorted sets each: of left and of right ends. All
-- spans but those that begin behind b or end before a overlap [a, b]: two counts, whatever number there is.
-- A writer that waits reserves (p): from then on no reader or upgradable enters where he wants to, and no other writer.
-- A reader that waits for a writer inside gets his turn (t): he goes before any reservation, and no writer before him.
-- So readers and writers alternate where both wait, and neither starves. An upgradable that waits for a writer may go
-- before reservations too, but holds up nobody: else it could wait for an upgrade, and the upgrade for it.
-- (Phase-fair reader-writer locks: Brandenburg and Anderson 2010.)
--
-- Invariants:
-- - left and right ends of a span stand and go together, in one script: what stands in one set only hides another;
-- - spans is a hash: token -> 'mode a b fencing-token metadata' of who holds, bell -> 'mode a b mark under' of who waits;
-- - ends are the holders' deadlines, waits those of the marks, ms: each has its own, and dies with its owner;
-- - of waiting writers no two reservations overlap; those of upgrades may, for an upgrade passes every other.
local spans, ends, waits, fence, queue, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[16]
local SIDES = {
  r = {KEYS[6], KEYS[7]}, u = {KEYS[8], KEYS[9]}, w = {KEYS[10], KEYS[11]}, p = {KEYS[12], KEYS[13]}, t = {KEYS[14], KEYS[15]},
}
local SLACK = 1000  -- ms that keys outlast what stands in them, so that it is found to have come to its end
local WALK = 16  -- so many of the queue are looked at in one step
local departed = {}  -- what writers have left in this step

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

-- What stands in spans of one whose deadline has not passed.
local function read(id, deadlines, pattern)
  local deadline, span = redis.call('ZSCORE', deadlines, id), redis.call('HGET', spans, id)
  if deadline and span and tonumber(deadline) > NOW then return string.match(span, pattern) end
end

-- Mode, a, b, fencing token and metadata of a holder, or nil.
local function holder(token) return read(token, ends, '^(%l) (%S+) (%S+) (%d+) (.*)$') end

local function hold(token, mode, a, b, minted, metadata, ttl)
  redis.call('HSET', spans, token, table.concat({mode, a, b, minted, metadata}, ' '))
  redis.call('ZADD', ends, whole(NOW + ttl), token)
  put(mode, token, a, b, ttl)
  keep(spans, ttl + SLACK)
  keep(ends, ttl + SLACK)
end

local function let_go(token, mode, a, b)
  redis.call('ZREM', ends, token)
  for side in pairs(SIDES) do
    if side == mode or not mode then take(side, token) end  -- not known where, if spans was lost
  end
  redis.call('HDEL', spans, token)
  if mode == 'w' then departed[#departed + 1] = {tonumber(a), tonumber(b)} end
end

-- Mode, a, b, mark (p, t or -) and token of the upgradable that is to be upgraded (or -), of who waits; or nil.
local function waiter(of) return read(of, waits, '^(%l) (%S+) (%S+) (%S) (%S+)$') end

local function marked(mode, mark)
  if mark == 'p' or (mark == 't' and mode == 'r') then return mark end
end

local function wait(of, mode, a, b, mark, under, ms)
  redis.call('HSET', spans, of, table.concat({mode, a, b, mark, under}, ' '))
  redis.call('ZADD', waits, whole(NOW + ms), of)
  if marked(mode, mark) then put(mark, of, a, b, ms) end
  keep(spans, ms + SLACK)
  keep(waits, ms + SLACK)
end

local function leave(of, seat)
  redis.call('ZREM', waits, of)
  redis.call('ZREM', queue, of .. seat)
  take('p', of)
  take('t', of)
  redis.call('HDEL', spans, of)
end

-- Removes what has come to its end; how much that was. A first write that a server out of memory allows.
local function purge(seat)
  local over = redis.call('ZRANGEBYSCORE', ends, '-inf', NOW)
  for _, token in ipairs(over) do
    let_go(token, string.match(redis.call('HGET', spans, token) or '', '^(%l) (%S+) (%S+)'))
  end
  local gone = redis.call('ZRANGEBYSCORE', waits, '-inf', NOW)
  for _, of in ipairs(gone) do leave(of, seat) end
  redis.call('ZREMRANGEBYSCORE', ends, '-inf', NOW)
  return #over + #gone
end

-- Whether that one cannot enter now, with the mark that he has.
local function blocked(mode, a, b, mark, under)
  if overlapping('w', a, b) > 0 then return true end
  if mode == 'r' then return mark ~= 't' and overlapping('p', a, b) > 0 end
  local upgradables = overlapping('u', a, b)
  if mode == 'u' then return upgradables > 0 or (mark ~= 't' and overlapping('p', a, b) > 0) end
  if overlapping('r', a, b) > 0 or overlapping('t', a, b) > 0 then return true end
  if under ~= '-' then return upgradables > 1 end  -- one of them is its own
  return upgradables > 0 or overlapping('p', a, b) > (mark == 'p' and 1 or 0)
end

local function was_left(a, b)
  for _, left in ipairs(departed) do
    if left[1] <= tonumber(b) and tonumber(a) <= left[2] then return true end
  end
  return false
end

-- Goes through the queue from a rank on: wakes all readers that may enter, up to and with the first other one; gives
-- those who wait their turns and the reservation. Who stands behind where the walk ends is woken to go on with it.
-- Returns the bells that were rung.
local function settle(rank)
  local rung = {}
  local entries = redis.call('ZRANGE', queue, rank, rank + WALK)
  for place, entry in ipairs(entries) do
    local of, seat = bell_of(entry), string.sub(entry, -SEAT)
    local state = redis.call('GET', of)
    local mode, a, b, mark, under = waiter(of)
    if place > WALK then
      if #rung == 0 and state == '' then ring(of) rung[1] = of end
    elseif not state or not mode then
      leave(of, seat)
    else
      if mode ~= 'w' and mark == '-' and was_left(a, b) then
        mark = 't'
        wait(of, mode, a, b, mark, under, BELL_TTL)
      end
      if not blocked(mode, a, b, mark, under) then
        if state == '' then ring(of) rung[#rung + 1] = of end
        if mode ~= 'r' then break end
      elseif mode == 'w' and mark == '-' and overlapping('p', a, b) == 0 then
        wait(of, mode, a, b, 'p', under, BELL_TTL)
      end
    end
  end
  return rung
end
