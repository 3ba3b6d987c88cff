-- Gives the permits back if the token holds them, and leaves the queue; then wakes the next waiter.
-- Until `at least` ms after their grant, they have no holder but are not free. The fence stays for its retention.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 token   2 retention of the fence, ms   3 seat   4 flags: r wakes the next, l leaves the queue with its bell
--       5 at least, ms (absent: free at once)
-- Returns {1 when freed, 0 when the token does not hold, or the lease that has taken its place, bells rung…}
--
-- Invariant: a lease that is kept has no holder: its token is NOBODY and then the token of its last holder. It ends
-- `at least` ms after the grant, whose time is the fencing token; a clock that was set back since does not lengthen that.
local NOBODY = string.rep('0', 32)

purge(true)
local held, minted, metadata = lease_of(ARGV[1])
if held then
  local left = ARGV[5] and math.ceil(math.min(MICROSECONDS, minted) / 1000 + ARGV[5]) - NOW or 0
  if left > 0 then hold(NOBODY .. ARGV[1], held, minted, metadata, left) end
  drop(ARGV[1])  -- after `hold`: while its slot moves, a key that is gone cannot be written again
  if left > 0 and redis.call('ZCARD', holders) == 1 then
    redis.call('PEXPIRE', holders, left + SLACK)
    redis.call('PEXPIRE', leases, left + SLACK)
  end
  keep(fence, ARGV[2])
end
dequeue(queue, bell, ARGV[3], has(ARGV[4], 'l'))
local rung = {}
if has(ARGV[4], 'r') then rung = wake(ARGV[3] ~= NO_SEAT, 0) end
return {held and 1 or thief_of(ARGV[1]), unpack(rung)}
