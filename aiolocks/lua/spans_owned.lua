-- Tells whether the token holds a span.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…19 pairs of ends   20 bell
-- ARGV  1 token   2 seat
-- Returns 1 or 0
purge(ARGV[2], true)
return holder(ARGV[1]) and 1 or 0
