-- Lines: the waiters of limits, and whose turn it is.
--
-- Invariants:
-- - turns is a sorted set without scores: for each line that waits 'key=cap turn line', at a key that was full, and
--   '!line key=cap turn'; and '#turn', the last turn that was given;
-- - a waiter is called when it is its turn and all its keys have room. A call takes the permits, as a lease of nobody
--   with CALLED before the seat: so a newcomer passes no waiter that could enter. It ends with the bell that was rung,
--   and no further call makes that last longer; until then it serves any waiter of that bell and line that asks;
-- - after each step, no line waits whose keys have room. A line that was called goes to the end of the turns: of two
--   lines that could both enter, neither enters twice before the other.
-- Where the line waits, and its turn; or nil.
local function parked(line)
  local found = redis.call('ZRANGEBYLEX', turns, '[!' .. line .. ' ', '(!' .. line .. '!', 'LIMIT', 0, 1)[1]
  return string.match(found or '', '^!%S+ (%S+) (%d+)$')
end

-- The line waits nowhere any more, nor stands where it was `found`. The last turn goes with the last line.
local function unpark(line, found)
  local place, turn = parked(line)
  if found then redis.call('ZREM', turns, found) end
  if place then
    redis.call('ZREM', turns, place .. ' ' .. turn .. ' ' .. line, '!' .. line .. ' ' .. place .. ' ' .. turn)
  end
  if redis.call('ZCARD', turns) <= 1 then redis.call('DEL', turns) end
  return turn
end

-- The line waits at that key from now on. It keeps its turn, or gets the last one.
local function park(line, place, found)
  local turn = unpark(line, found)
  local last = redis.call('ZRANGEBYLEX', turns, '[#', '($', 'LIMIT', 0, 1)[1]
  if not turn then
    turn = string.format('%016d', (last and string.sub(last, 2) or 0) + 1)
    if last then redis.call('ZREM', turns, last) end
    last = nil
  end
  if not last then redis.call('ZADD', turns, 0, '#' .. turn) end  -- also where a line that moves was the only one
  local there, back = place .. ' ' .. turn .. ' ' .. line, '!' .. line .. ' ' .. place .. ' ' .. turn
  redis.call('ZADD', turns, 0, there, 0, back)
  redis.call('PEXPIRE', turns, QUEUE_TTL)
end

-- The queue of a line, beside the queue of the name; nil for what is no line: it names no key but such a queue.
local function queue_in(queue, line)
  local place, name = string.match(queue, '^([^{]*%.queue):(.*)$')
  return place and not string.find(line, '[:{}]') and place .. '.' .. line .. ':' .. name or nil
end

-- The first living waiter of a line that was not called; drops the dead before it.
local function first_in(line)
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

-- The line that has waited for longest of those at that key all whose keys have room; its turn, and where it waits.
-- Lines that were found to wait for another key go there.
local function first_at(key)
  local from, best, least, at = '[' .. key .. '=', nil, nil, nil
  while true do
    local found = redis.call('ZRANGEBYLEX', turns, from, '(' .. key .. '>', 'LIMIT', 0, 1)[1]
    if not found then return best, least, at end
    local place, turn, line = string.match(found, '^(%S+) (%d+) (%S+)$')
    if not place then reject_foreign(turns) end
    local blocked = full(place) or full(line)
    if blocked and blocked ~= place then
      park(line, blocked, found)
    else
      if not blocked and (not least or turn < least) then best, least, at = line, turn, place end
      from = '(' .. place .. '!'
    end
  end
end

-- Calls the waiters whose turn it is, as far as what came back in this step goes. Returns all bells that were rung in it.
local function wake()
  while true do
    local line, least, place
    for key in pairs(freed) do
      local best, turn, at = first_at(key)
      if not best then
        freed[key] = nil
      elseif not least or turn < least then
        line, least, place = best, turn, at
      end
    end
    if not line then return rung end
    unpark(line, place .. ' ' .. least .. ' ' .. line)
    local entry = first_in(line)
    if entry then
      local bell = bell_of(everyone, entry)
      if redis.call('GET', bell) ~= 'rung' then  -- or else it has come to its end when its owner is dead
        ring(bell)
        rung[#rung + 1] = bell
      end
      hold(CALLED .. string.sub(entry, -SEAT), line, 0, '', redis.call('PTTL', bell))
      if first_in(line) then park(line, place) end
    end
  end
end

-- A line that has waiters waits at that key, or, if its keys have room, its first waiter is called, or soon will be.
local function line_waits(line, place)
  if not parked(line) and first_in(line) then park(line, place or full(line) or string.match(line, '[^,]+')) end
  for key in each(line) do freed[key] = true end
  wake()
end

-- The call of this seat, or else the first of any waiter of this bell: requests of a session can overtake each other, and
-- the waiter that asks may have lost its own call to one that came later.
local function call_of(bell, seat)
  if redis.call('HEXISTS', leases, CALLED .. seat) == 1 then return CALLED .. seat end
  for _, entry in ipairs(redis.call('ZRANGE', queue, 0, WALK - 1)) do
    local call = CALLED .. string.sub(entry, -SEAT)
    if bell_of(queue, entry) == bell and redis.call('HEXISTS', leases, call) == 1 then return call end
  end
end

-- As `permits` does it: one of the two keys was lost, or another program has written there.
local alien
local function recount()
  local there = redis.call('HKEYS', leases)
  for _, field in ipairs(there) do
    if string.sub(field, 1, 1) == '#' then
      redis.call('HDEL', leases, field)
    elseif not is_token(field) then
      alien = leases
    elseif not redis.call('ZSCORE', holders, field) then
      redis.call('HDEL', leases, field)
    end
  end
  for _, token in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
    local line = lease_of(token)
    if not is_token(token) then
      alien = holders
    elseif not line then
      redis.call('ZREM', holders, token)
    else
      count(line, 1)
    end
  end
  for _, waits in ipairs(redis.call('ZRANGE', turns, 0, -1)) do
    local key = string.match(waits, '^([^!#=][^=]*)=')
    if key then freed[key] = true end
  end
end

-- Removes the leases and calls that have come to their end; how many. `at_once`: as `permits` has it. Where nobody holds,
-- the data may have been lost, and all lines are looked at.
local function purge(at_once)
  if at_once then redis.call('ZREM', holders, '') end
  local over, called = redis.call('ZRANGEBYSCORE', holders, '-inf', NOW), {}
  for _, token in ipairs(over) do
    local line = is_token(token) and drop(token)
    if line and string.sub(token, 1, #CALLED) == CALLED then called[#called + 1] = line end
  end
  local number, keys = redis.call('ZCARD', holders), redis.call('HGET', leases, '#') or 0
  if number == 0 or redis.call('HLEN', leases) ~= number + 1 + (tonumber(keys) or 0) then recount() end
  if alien and not at_once then reject_foreign(alien) end
  for _, line in ipairs(called) do line_waits(line) end
  wake()
  return #over
end

-- Leaves both queues, with the call that it may have had. A line without waiters waits nowhere.
local leave = dequeue
local function dequeue(queue, bell, seat, leaving)
  local line = string.match(queue, '%.queue%.([^:]*):')
  redis.call('ZREM', everyone, bell .. seat)
  drop(CALLED .. seat)
  leave(queue, bell, seat, leaving)
  if line and not first_in(line) then unpark(line) end
end
