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
