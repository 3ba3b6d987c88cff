-- Which key an entry of a queue may name.
--
-- Invariant: an entry of a queue is used as a key only if it is a bell of the queue's own name. A queue is data: a user
-- that may write to it could list any other key there, for a caller with wider rights to delete.

-- The bell that this entry names, or nil when it names no bell of this name. `seat`: how many characters follow the bell.
-- The part after `queue` and before the colon tells several queues of one name apart.
-- A bell that stands in the queues of several names is called after the first and lists the others in hexadecimal.
local function bell_in(queue, entry, seat)
  local bell = string.sub(entry, 1, -seat - 1)
  local place, name = string.match(queue, '^([^{]*)%.queue[^:{]*:(.*)$')
  local role, of = string.match(bell, '^%.bell(%.[^:{}]+):(.*)$', #place + 1)
  if not role or string.sub(bell, 1, #place) ~= place then return nil end
  if of == name then return bell end
  local listed = string.gsub(name, '.', function(byte) return string.format('%02x', string.byte(byte)) end)
  return string.find(role .. '.', '.' .. listed .. '.', 1, true) and bell or nil
end
