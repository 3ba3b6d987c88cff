-- Changes the metadata of a span if the token holds it. Never creates a span that is gone; mode, ends, fencing token and
-- deadline stay. Sent again, it does the same.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…19 pairs of ends   20 bell
-- ARGV  1 token   2 metadata, JSON
-- Returns 1 when changed, 0 when the token does not hold a span
local mode, a, b, minted = holder(ARGV[1])
if not mode then return 0 end
redis.call('HSET', spans, ARGV[1], table.concat({mode, a, b, minted, ARGV[2]}, ' '))
return 1
