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
