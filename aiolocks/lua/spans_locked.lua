-- Tells whether a try now would be refused.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…15 pairs of ends   16 bell
-- ARGV  1 mode   2 a   3 b   4 token of the upgradable that is to be upgraded, or -   5 seat
-- Returns 1 or 0
purge(ARGV[5])
return blocked(ARGV[1], ARGV[2], ARGV[3], '-', ARGV[4]) and 1 or 0
