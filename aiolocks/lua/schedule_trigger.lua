-- Begins a run of a schedule out of turn, which claims no tick; or tells why not.
-- Sent again with the token that runs already, it is the same grant with a new ttl.
--
-- KEYS  1 holders   2 leases   3 register   4 fence   5 queue   6 bell   7 history
-- ARGV  1 to 7 as in shared/claims
-- Returns the grant or the refusal (b or s), as in shared/claims
purge()
local mine = earlier_grant()
if mine then return mine end
collect_lost(redo)
if is_blocked() then return refuse(has(flags, 's') and 's' or 'b') end
return begin_run(mint_for_run(), NOW, 0, '')
