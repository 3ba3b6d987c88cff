-- Sets the ttl again for the token that runs, and keeps the key of its ticket for as long. Never creates a lease that is gone.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell   7 owner   8 over
--       and of a ticket   10 run   11 about
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 ticket, or '' for none   5 limit
-- Returns 1 when renewed, 0 when the token does not run
if purge(true) > 0 then wake(true, 0) end
local permits, minted, metadata = lease_of(ARGV[1])
if not permits then return 0 end
hold_run(ARGV[1], minted, metadata, ARGV[5], tonumber(ARGV[2]), ARGV[3])
if redis.call('GET', owner) == ARGV[4] then keep_key(owner, about, ARGV[2]) end
-- Read last: a connection that tracks it is told of each later change.
return redis.call('ZCARD', holders) > 0 and 1 or 0
