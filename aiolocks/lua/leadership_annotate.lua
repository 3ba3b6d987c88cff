-- Changes the metadata of a lease and of its term if the token holds. It never creates a lease; permits, fencing token and
-- deadline stay. If it is sent again, it has the same result.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell   7 terms   8 news
-- ARGV  1 token   2 metadata, JSON
-- Returns 1 when changed, 0 when the token does not hold
local deadline = redis.call('ZSCORE', holders, ARGV[1])
local permits, minted = lease_of(ARGV[1])
if not permits or not deadline or tonumber(deadline) <= NOW then return 0 end
redis.call('HSET', leases, ARGV[1], permits .. ':' .. minted .. ':' .. ARGV[2])
record_term(minted, ARGV[2], deadline - NOW)
return 1
