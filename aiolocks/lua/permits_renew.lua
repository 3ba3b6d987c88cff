-- Sets the ttl of a lease again if the token holds. It never creates a lease.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 retention of the value, ms   5 seat
-- Returns 1 when renewed, 0 when the token does not hold, or the lease that has taken its place
local purged = purge(true)
if purged > 0 then wake(ARGV[5] ~= NO_SEAT, 0) end
local permits, minted, metadata = lease_of(ARGV[1])
if not permits then return thief_of(ARGV[1]) end
hold(ARGV[1], permits, minted, metadata, tonumber(ARGV[2]))
keep(fence, ARGV[3])
keep(value, ARGV[4])
-- Read last: a connection that tracks the key is told of each later change.
return redis.call('ZCARD', holders) > 0 and 1 or 0
