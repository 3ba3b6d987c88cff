-- Gives the permits from one token to another, with a new ttl and the new holder's metadata.
-- If it is sent again, it has the same result. The fencing token stays.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 token that holds   2 token that will hold   3 ttl, ms   4 retention of the fence, ms   5 metadata, JSON
-- Returns the fencing token, or '' when neither token holds
--
-- Invariant: of several requests that adopt with one old token, exactly one finds it in place.
purge(true)
local token = lease_of(ARGV[1]) and ARGV[1] or ARGV[2]
local permits, minted = lease_of(token)
if not permits then return '' end
hold(ARGV[2], permits, minted, ARGV[5], tonumber(ARGV[3]))  -- first: the server deletes a key that is empty in between
if token ~= ARGV[2] then drop(token) end
keep(fence, ARGV[4])
return minted
