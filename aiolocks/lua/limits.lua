-- Limits: a permit of each of several keys.

--# limits
-- Limits: a lease holds one permit of each of its keys, and no key has more permits out than its cap.
--
-- KEYS of every step   1 holders   2 leases   3 turns   4 fence   5 queue of all   6 bell   7 queue of the line
--
-- The waiters for the same keys with the same caps are a line, called 'key=cap,key=cap…', with the smallest cap first.
--
-- Invariant: holders is a sorted set of tokens by deadline, ms; leases a hash from the same tokens to
-- 'line:fencing token:metadata', from '#key' to the number of tokens that hold that key, and from '#' to the number of these
-- fields. A step changes a count only together with a token; where the two keys differ, they are counted again (`lines`).
local SLACK = 1000  -- ms that keys outlast their entries, so that a step finds that these have ended
local MOST_TOLD, NOBODY = 8, string.rep('0', 32)
local CALLED = NOBODY .. NO_SEAT
local holders, leases, turns, fence, everyone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local bell, queue = KEYS[6], KEYS[7]
local value = turns  -- the steps of permits keep the key `value` while there is a holder
local freed, rung = {}, {}  -- in this step: keys of which a permit came back, and bells that were rung
local asking  -- where this step hands over: the bell of the waiter that asks in it

-- Line, fencing token and metadata of a lease, or nil.
local function lease_of(token)
  return string.match(redis.call('HGET', leases, token) or '', '^([^:]+):(%d+):(.*)$')
end

local function each(line) return string.gmatch(line, '([^=,]+)=(%d+)') end

-- The first key of the line that is full, with its cap, or nil.
local function full_key(line)
  for key, cap in each(line) do
    local held = tonumber(redis.call('HGET', leases, '#' .. key) or 0) or reject_foreign(leases)
    if held >= tonumber(cap) then return key .. '=' .. cap end
  end
end

local function count(line, number)
  local keys = 0
  for key in each(line) do
    local held = redis.call('HINCRBY', leases, '#' .. key, number)
    if held <= 0 then redis.call('HDEL', leases, '#' .. key) end
    if held == math.max(0, number) then keys = keys + number end
  end
  if redis.call('HINCRBY', leases, '#', keys) <= 0 then redis.call('HDEL', leases, '#') end
end

local function hold(token, line, minted, metadata, ttl)
  if not lease_of(token) then count(line, 1) end
  redis.call('ZADD', holders, whole(NOW + ttl), token)
  redis.call('HSET', leases, token, line .. ':' .. minted .. ':' .. metadata)
  keep(holders, ttl + SLACK)
  keep(leases, ttl + SLACK)
end

-- Removes a lease; returns its line, or nil.
local function drop(token)
  local line = lease_of(token)
  redis.call('ZREM', holders, token)
  redis.call('HDEL', leases, token)
  if line then
    count(line, -1)
    for key in each(line) do freed[key] = true end
  end
  return line
end


--# lines
-- Lines: the waiters of limits, and their turns.
--
-- Invariants:
-- - turns is a sorted set in which all scores are 0. Each line that waits has an entry 'key=cap turn line', where the key
--   was full, and an entry '!line key=cap turn'; and '#turn' is the last turn that was given;
-- - a waiter is called when its line has the turn and all its keys have room. The call takes the permits, as a lease with
--   the token CALLED and seat: so a newcomer passes no waiter that could enter. It ends with the bell that was rung, and
--   no further call makes that bell last longer; until then, any waiter of that bell and line may use the call;
-- - after each step, no line waits if all its keys have room. A line that was called gets the last turn: of two lines
--   that could both enter, neither enters twice before the other.

-- The 'key=cap' at which the line waits, and its turn; or nil.
local function place_of(line)
  local found = redis.call('ZRANGEBYLEX', turns, '[!' .. line .. ' ', '(!' .. line .. '!', 'LIMIT', 0, 1)[1]
  return string.match(found or '', '^!%S+ (%S+) (%d+)$')
end

-- Removes the line from turns, also the entry `found`; returns its turn, or nil. With the last line, '#turn' is removed.
local function leave_turns(line, found)
  local place, turn = place_of(line)
  if found then redis.call('ZREM', turns, found) end
  if place then
    redis.call('ZREM', turns, place .. ' ' .. turn .. ' ' .. line, '!' .. line .. ' ' .. place .. ' ' .. turn)
  end
  if redis.call('ZCARD', turns) <= 1 then redis.call('DEL', turns) end
  return turn
end

-- The line waits at that 'key=cap' from now on. It keeps its turn, or gets the last one.
local function enter_turns(line, place, found)
  local turn = leave_turns(line, found)
  local last = redis.call('ZRANGEBYLEX', turns, '[#', '($', 'LIMIT', 0, 1)[1]
  if not turn then
    turn = string.format('%016d', (last and string.sub(last, 2) or 0) + 1)
    if last then redis.call('ZREM', turns, last) end
    last = nil
  end
  if not last then redis.call('ZADD', turns, 0, '#' .. turn) end  -- also for the only line, when it moves
  local by_key, by_line = place .. ' ' .. turn .. ' ' .. line, '!' .. line .. ' ' .. place .. ' ' .. turn
  redis.call('ZADD', turns, 0, by_key, 0, by_line)
  redis.call('PEXPIRE', turns, QUEUE_TTL)
end

-- The key of a line's queue, beside the queue of the name. A text that is no line gives nil: it can name no other key.
local function queue_in(queue, line)
  local place, name = string.match(queue, '^([^{]*%.queue):(.*)$')
  return place and not string.find(line, '[:{}]') and place .. '.' .. line .. ':' .. name or nil
end

-- The first living waiter of a line that has no call. Removes dead waiters before it.
local function first_to_call(line)
  local queue, rank = queue_in(everyone, line), 0
  while queue do
    local entry = redis.call('ZRANGE', queue, rank, rank)[1]
    local bell = entry and bell_of(queue, entry)
    if not bell then return nil end
    if redis.call('EXISTS', bell) == 0 then
      redis.call('ZREM', queue, entry)
      redis.call('ZREM', everyone, entry)
    elseif redis.call('HEXISTS', leases, CALLED .. string.sub(entry, -SEAT)) == 1 then
      rank = rank + 1
    else
      return entry
    end
  end
end

-- Of the lines that wait at that key and have room at all their keys: the line with the first turn, that turn, and its
-- 'key=cap'. A line that lacks room at another key moves there.
local function next_line_at(key)
  local from, best, least, at = '[' .. key .. '=', nil, nil, nil
  while true do
    local found = redis.call('ZRANGEBYLEX', turns, from, '(' .. key .. '>', 'LIMIT', 0, 1)[1]
    if not found then return best, least, at end
    local place, turn, line = string.match(found, '^(%S+) (%d+) (%S+)$')
    if not place then reject_foreign(turns) end
    local blocked = full_key(place) or full_key(line)
    if blocked and blocked ~= place then
      enter_turns(line, blocked, found)
    else
      if not blocked and (not least or turn < least) then best, least, at = line, turn, place end
      from = '(' .. place .. '!'
    end
  end
end

-- Calls waiters in their turns, as long as there is room at keys of which a permit came back in this step. Returns all bells
-- that the step has rung.
local function wake()
  while true do
    local line, least, place
    for key in pairs(freed) do
      local best, turn, at = next_line_at(key)
      if not best then
        freed[key] = nil
      elseif not least or turn < least then
        line, least, place = best, turn, at
      end
    end
    if not line then return rung end
    leave_turns(line, place .. ' ' .. least .. ' ' .. line)
    local entry = first_to_call(line)
    if entry then
      local bell = bell_of(everyone, entry)
      if bell ~= asking and redis.call('GET', bell) ~= 'rung' then  -- a rung bell must end if its owner is dead
        ring(bell)
        rung[#rung + 1] = bell
      end
      hold(CALLED .. string.sub(entry, -SEAT), line, 0, '', redis.call('PTTL', bell))
      if first_to_call(line) then enter_turns(line, place) end
    end
  end
end

-- Lets a line that has waiters wait at that 'key=cap'. If all its keys have room, its first waiter is called, now or soon.
local function let_line_wait(line, place)
  if not place_of(line) and first_to_call(line) then enter_turns(line, place or full_key(line) or string.match(line, '[^,]+')) end
  for key in each(line) do freed[key] = true end
  wake()
end

-- The token of the call of this seat, or else of the first call of a waiter with this bell: requests of a session can
-- overtake each other, and a waiter that came later may have used the call of this one.
local function find_call(bell, seat)
  if redis.call('HEXISTS', leases, CALLED .. seat) == 1 then return CALLED .. seat end
  for _, entry in ipairs(redis.call('ZRANGE', queue, 0, WALK - 1)) do
    local call = CALLED .. string.sub(entry, -SEAT)
    if bell_of(queue, entry) == bell and redis.call('HEXISTS', leases, call) == 1 then return call end
  end
end

-- As in `permits`: one of the two keys was lost, or another program has written there.
local foreign_key
local function recount()
  local fields = redis.call('HKEYS', leases)
  for _, field in ipairs(fields) do
    if string.sub(field, 1, 1) == '#' then
      redis.call('HDEL', leases, field)
    elseif not is_token(field) then
      foreign_key = leases
    elseif not redis.call('ZSCORE', holders, field) then
      redis.call('HDEL', leases, field)
    end
  end
  for _, token in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
    local line = lease_of(token)
    if not is_token(token) then
      foreign_key = holders
    elseif not line then
      redis.call('ZREM', holders, token)
    else
      count(line, 1)
    end
  end
  for _, entry in ipairs(redis.call('ZRANGE', turns, 0, -1)) do
    local key = string.match(entry, '^([^!#=][^=]*)=')
    if key then freed[key] = true end
  end
end

-- Removes the leases and calls that have ended; returns their number. `at_once`: as in `permits`. If there is no holder,
-- the data may have been lost, and the step looks at all lines.
local function purge(at_once)
  if at_once then redis.call('ZREM', holders, '') end
  local ended, called = redis.call('ZRANGEBYSCORE', holders, '-inf', NOW), {}
  for _, token in ipairs(ended) do
    local line = is_token(token) and drop(token)
    if line and string.sub(token, 1, #CALLED) == CALLED then called[#called + 1] = line end
  end
  local number, keys = redis.call('ZCARD', holders), redis.call('HGET', leases, '#') or 0
  if number == 0 or redis.call('HLEN', leases) ~= number + 1 + (tonumber(keys) or 0) then recount() end
  if foreign_key and not at_once then reject_foreign(foreign_key) end
  for _, line in ipairs(called) do let_line_wait(line) end
  wake()
  return #ended
end

-- Removes the seat from both queues, and its call if there is one. A line without waiters is removed from turns.
local dequeue_from_line = dequeue
local function dequeue(queue, bell, seat, leaving)
  local line = string.match(queue, '%.queue%.([^:]*):')
  redis.call('ZREM', everyone, bell .. seat)
  drop(CALLED .. seat)
  dequeue_from_line(queue, bell, seat, leaving)
  if line and not first_to_call(line) then leave_turns(line) end
end

--# limits_acquire
-- Takes a permit of each key of the line, or says how long the lease that ends first may last.
-- If it is sent again with a token that already holds, it is the same grant with a new ttl.
--
-- KEYS  1 holders   2 leases   3 turns   4 fence   5 queue of all   6 bell   7 queue of the line
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 line   6 seat   7 flags: w will wait if
--       refused, q has a bell, l deletes it, h is told the holders of the full key if refused, b takes a seat only, for
--       others of its session go first
-- Returns {1, fencing token, number of entries in the queue of all, 0, bells rung…}
--      or {0, remaining ms (-1: no holder; -2: others go first)[, the holders], bells rung…}
--
-- Invariant: no waiter gets in before a living one of its line with another bell, nor takes permits of a call for others.
local token, ttl, line, seat, flags = ARGV[1], tonumber(ARGV[2]), ARGV[5], ARGV[6], ARGV[7]
local others, waits = number_in(everyone), has(flags, 'w')

-- The holders of that key, or of any, for a refusal: the server's time, microseconds; the key with its cap, or ''; and,
-- for each of the leases that end first, its token, the ms left, and the lease.
local function describe_holders(place)
  local found, key = {whole(MICROSECONDS), place or ''}, place and ',' .. string.match(place, '[^=]+') .. '='
  local ending = redis.call('ZRANGE', holders, 0, WALK - 1, 'WITHSCORES')
  for i = 1, #ending, 2 do
    local line_held = lease_of(ending[i]) or ''
    if #found < 2 + 3 * MOST_TOLD and (not key or string.find(',' .. line_held, key, 1, true)) then
      found[#found + 1], found[#found + 2] = ending[i], math.max(0, ending[i + 1] - NOW)
      found[#found + 1] = redis.call('HGET', leases, ending[i])
    end
  end
  return found
end

purge()
local held, minted, metadata = lease_of(token)
if not held then
  local behind = has(flags, 'b')
  local call, place = waits and not behind and find_call(bell, seat), full_key(line)
  local first = first_to_call(line)
  if not call and (behind or place or first and not (waits and bell_of(queue, first) == bell)) then
    if waits then
      rung[#rung + 1] = enqueue(queue, bell, seat, has(flags, 'q'))
      redis.call('ZADD', everyone, 'NX', whole(arrival(everyone)), bell .. seat)
      redis.call('PEXPIRE', everyone, QUEUE_TTL)
      let_line_wait(line, place)
    end
    local earliest = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
    local remaining = not place and -2 or earliest and math.max(0, earliest - NOW) or -1
    if has(flags, 'h') then return {0, remaining, describe_holders(place), unpack(rung)} end
    return {0, remaining, unpack(rung)}
  end
  if call then drop(call) end
  held, minted, metadata = line, mint(fence, MICROSECONDS, ARGV[3]), ARGV[4]
end
keep(fence, ARGV[3])
hold(token, held, minted, metadata, ttl)
dequeue(queue, bell, seat, has(flags, 'l'))
let_line_wait(held)
return {1, minted, others > 0 and redis.call('ZCARD', everyone) or 0, 0, unpack(rung)}

--# hand_over_limits
-- Before limits_acquire: releases a lease, so that one step also acquires for the next waiter of the same session.
--
-- ARGV  those of limits_acquire, and then the token that is released
-- Returns {-1} when that token does not hold, or its lease has ended: then the step changes nothing
--
-- Invariant: the step does what a release that wakes and then that acquire do. Only a waiter that asks in this step needs no
-- ring. A try that will not wait is no such waiter: another waiter of its session may have the same bell.
do
  local from = table.remove(ARGV)
  local ends = redis.call('ZSCORE', holders, from)
  if not ends or tonumber(ends) <= NOW or not lease_of(from) then return {-1} end
  if has(ARGV[7], 'w') then asking = bell end
  purge()  -- before any waiter is called: permits of the dead are for the line with the first turn, too
  drop(from)
  keep(fence, ARGV[3])
  wake()  -- before the acquire: without any lease, that would look at all lines
end

--# limits_locked
-- Tells whether a try would be refused now, and how many permits of each key are out.
--
-- KEYS  1 holders   2 leases   3 turns   4 fence   5 queue of all   6 bell   7 queue of the line
-- ARGV  1 line
-- Returns {1 or 0, the number of permits out for each key, in the order of the line…}
purge(true)
if foreign_key then reject_foreign(foreign_key) end
local found = {(full_key(ARGV[1]) or first_to_call(ARGV[1])) and 1 or 0}
for key in each(ARGV[1]) do found[#found + 1] = tonumber(redis.call('HGET', leases, '#' .. key) or 0) end
return found

--# force_limits
-- Frees the permits of all holders that were granted up to a fencing token, and wakes the waiters. The fence stays.
-- The next step corrects the counts beside the leases, and then calls waiters in their turns.
--
-- KEYS  1 holders   2 leases   3 queue   4 turns   5 fence
-- ARGV  1 the latest fencing token that it frees   3 the mark for the holders
-- Returns {number of leases that it has freed and keys that it has discarded, bells rung…}
local holders, leases = KEYS[1], KEYS[2]
discard_fence(KEYS[5])
local freed, left = discard('zset', holders, KEYS[4]) + discard('hash', leases), redis.call('PTTL', holders)
for _, token in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
  local minted = string.match(redis.call('HGET', leases, token) or '', '^[^:]+:(%d+):')
  if is_due(minted) then
    redis.call('ZREM', holders, token)
    tell(token, minted, left)
    freed = freed + 1
  end
end
for _, token in ipairs(redis.call('HKEYS', leases)) do
  if not redis.call('ZSCORE', holders, token) then redis.call('HDEL', leases, token) end
end
return {freed, unpack(wake_first(KEYS[3], 16, true))}

--# mid_move_limits
-- Limits while their slot moves: as with permits, the token of a holder is in two keys, and both must be on this node.
turns, value, everyone, queue, bell = HIDDEN, HIDDEN, HIDDEN, HIDDEN, HIDDEN
if is_here(holders) ~= is_here(leases) then return NOT_HERE end
