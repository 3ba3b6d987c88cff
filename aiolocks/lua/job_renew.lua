-- Sets the ttl anew for the token that runs, and keeps the key of its ticket for as long. Never creates what is gone.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell   7 owner
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 ticket, or '' for none
-- Returns 1 when renewed, 0 when the token does not run
if purge(true) > 0 then wake(true, 0) end
local permits, minted, metadata = lease_of(ARGV[1])
if not permits then return 0 end
hold(ARGV[1], permits, minted, metadata, tonumber(ARGV[2]))
keep(fence, ARGV[3])
if redis.call('GET', KEYS[7]) == ARGV[4] then keep(KEYS[7], ARGV[2]) end
return 1
