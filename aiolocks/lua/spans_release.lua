-- Releases the span if the token holds it, and leaves the queue; then wakes the waiters that may enter.
-- The fence stays for its retention.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…19 pairs of ends   20 bell
-- ARGV  1 token   2 retention of the fence, ms   3 seat   4 flags: r wakes, l leaves the queue with its bell
-- Returns {1 when freed, 0 when the token does not hold a span, or the mark of who has freed it, bells rung…}
local purged = purge(ARGV[3], true)
local mode, a, b = holder(ARGV[1])
if mode then
  remove_holder(ARGV[1], mode, a, b)
  keep(fence, ARGV[2])
end
local leaving = has(ARGV[4], 'l')
if leaving then
  remove_waiter(bell, ARGV[3])
  redis.call('DEL', bell)
end

-- If the span of another reader covers that of this reader, its release changes nothing for any waiter.
local other = mode == 'r' and purged == 0 and not leaving and redis.call('ZRANGE', SIDES.r[1], 0, 0)[1]
if other then
  local _, left, right = holder(other)
  if left and tonumber(left) <= tonumber(a) and tonumber(b) <= tonumber(right) then return {1} end
end
local rung = {}
if has(ARGV[4], 'r') then rung = wake_waiters(0) end
return {mode and 1 or thief_of(ARGV[1]), unpack(rung)}
