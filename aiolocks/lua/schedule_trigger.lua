-- Begins a run of a schedule out of turn, which claims no tick; or says why not.
-- Sent again with the token that runs already, it is the same grant with a new ttl.
--
-- KEYS  1 holders   2 leases   3 register   4 fence   5 queue   6 bell   7 history
-- ARGV  1 to 7 as in shared/claims
-- Returns what a claim is granted, or why not (b or s), as in shared/claims
purge()
local mine = again()
if mine then return mine end
abandoned(redo)
if hindered() then return refuse(has(flags, 's') and 's' or 'b', claimed_now()) end
return begin(NOW, 0, '')
