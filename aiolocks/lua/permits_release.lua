-- Gives the permits back if the token holds them, and leaves the queue; then wakes who is next.
-- The fence stays for its retention.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 token   2 retention of the fence, ms   3 seat   4 flags: r wakes the next, l leaves the queue with its bell
-- Returns {1 when freed, 0 when the token does not hold, bells rung…}
purge(true)
local held = lease_of(ARGV[1])
if held then
  drop(ARGV[1])
  keep(fence, ARGV[2])
end
stand_up(queue, bell, ARGV[3], has(ARGV[4], 'l'))
local rung = {}
if has(ARGV[4], 'r') then rung = wake(ARGV[3] ~= NO_SEAT, 0) end
return {held and 1 or 0, unpack(rung)}
