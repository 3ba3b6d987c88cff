-- Tells whether the token holds.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 token
-- Returns 1 or 0
purge(true)
return lease_of(ARGV[1]) and 1 or 0
