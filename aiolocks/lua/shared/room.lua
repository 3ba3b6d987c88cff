-- Room to wait in: `room` may wait, and one too many is a duplicate of a waiter that lives.
--
-- Invariants:
-- - seen is a hash of those that stand in the queue and have asked: for one that may wait, the number of its last
--   question; for one that has yet to make sure, less than 0, that of its first; 0 for one with a ticket. It holds as
--   well how many there were, and after how many of them a run began last. Numbers, for the server's clock may be set
--   back;
-- - a newcomer is turned away only because of others that may wait and have asked, or of a run that has begun, after
--   it came: the dead stand there for a while, and their jobs may be delivered again before that is over;
-- - a newcomer that has to make sure of that stands there as well, after them;
-- - one that has yet to make sure takes no newcomer's place, not in its own session either: it may be turned away itself,
--   because of a run that began before the newcomer came, and then nothing would run for that newcomer;
-- - one with a ticket may always wait, and takes no newcomer's place: if another delivery does its ticket, or another
--   ticket takes its key, it leaves without a run, and then nothing would run for that newcomer.
local SEEN_TTL = 600000  -- far longer than anybody sleeps between two tries

local function noted(seen, field) return tonumber(redis.call('HGET', seen, field) or 0) end

local function note(seen, field, sign)
  redis.call('HSET', seen, field, sign * redis.call('HINCRBY', seen, 'count', 1))
  redis.call('PEXPIRE', seen, SEEN_TTL)
end

-- 'f' for one too many; 'w' for one that may wait, 't' for one with a ticket; 'd' for one that has to make sure, and the
-- bells at which it has knocked. Those of its own session live, and need not be asked once they may wait.
local function standing(seen, room, entry, session, ticket)
  if ticket ~= '' then return 't', {} end
  local number = noted(seen, entry)
  if room == '' or number > 0 then return 'w', {} end
  if number < 0 and noted(seen, 'begun') > -number then return 'f', {} end
  local unsure, rung, places = {}, {}, tonumber(room)
  for rank = 0, number_in(queue) do
    if places == 0 then break end
    local other = first_living(queue, rank)
    if not other or other == entry then return 'w', {} end
    if redis.call('HGET', seen, other) ~= '0' then
      local asked = noted(seen, other)
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

-- Notes that it has asked, and adds to `rung` the bells of those that have to make sure of it: they are woken.
local function be_seen(seen, entry, stands, rung)
  if stands == 'd' then
    if noted(seen, entry) == 0 then note(seen, entry, -1) end
    return
  end
  note(seen, entry, stands == 't' and 0 or 1)
  for _, other in ipairs(redis.call('ZRANGE', queue, 0, WALK)) do
    local bell = noted(seen, other) < 0 and bell_of(queue, other)
    if bell and redis.call('GET', bell) == '' then
      ring(bell)
      rung[#rung + 1] = bell
    end
  end
end

-- It has left the queue; to run if it has `begun` just now.
local function be_gone(seen, entry, begun)
  redis.call('HDEL', seen, entry)
  if redis.call('ZCARD', queue) == 0 then
    redis.call('DEL', seen)
  elseif begun then
    note(seen, 'begun', 1)
  end
end
