-- Gives the moment of a token back, of each limit. The next to ask gets it if nobody stands behind it.
-- Sent again, or before the reservation, it changes nothing.
--
-- KEYS  reservations of each limit
-- ARGV  1 token
-- Returns how many limits had a reservation of this token
--
-- Invariant: writes with ZREM alone, so that it works on a server that is out of memory. The scores of others stay.
local given = 0
for _, key in ipairs(KEYS) do
  given = given + redis.call('ZREM', key, ARGV[1])
end
return given
