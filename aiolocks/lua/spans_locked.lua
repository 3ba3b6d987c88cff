-- Tells whether a try now would be refused.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…19 pairs of ends   20 bell
-- ARGV  1 mode   2 a   3 b   4 token of the upgradable that it will upgrade, or -   5 seat
-- Returns 1 or 0
check()
purge(ARGV[5], true)
return is_blocked('', ARGV[1], ARGV[2], ARGV[3], ARGV[4], false) and 1 or 0
