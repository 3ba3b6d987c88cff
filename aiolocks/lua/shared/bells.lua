-- The keys that an entry of a queue may name.
--
-- Invariant: an entry of a queue is used as a key only if it is a bell of the queue's own name. A queue is data: a user
-- that may write to it could put any other key there, and a caller with more rights would delete that key.

-- The bell that this entry names, or nil if it is no bell of the queue's name. `seat`: the number of characters after it.
-- In the key of a queue, the part between `queue` and the colon tells several queues of one name apart.
-- A bell in the queues of several names has the first of them as its name, and lists the others in hexadecimal.
local function bell_in(queue, entry, seat)
  local bell = string.sub(entry, 1, -seat - 1)
  local place, name = string.match(queue, '^([^{]*)%.queue[^:{]*:(.*)$')
  local role, bell_name = string.match(bell, '^%.bell(%.[^:{}]+):(.*)$', #place + 1)
  if not role or string.sub(bell, 1, #place) ~= place then return nil end
  if bell_name == name then return bell end
  local listed = string.gsub(name, '.', function(byte) return string.format('%02x', string.byte(byte)) end)
  return string.find(role .. '.', '.' .. listed .. '.', 1, true) and bell or nil
end
