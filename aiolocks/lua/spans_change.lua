-- Shrinks the span that the token holds, or makes its writer a reader; then wakes the waiters that may enter.
-- Sent again after it was done, it is the same success.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…19 pairs of ends   20 bell
-- ARGV  1 token   2 mode from now on   3 a   4 b   5 seat
-- Returns {1, bells rung…}, {0} when the token does not hold a span, or {-1} when the new span is no part of the old one
--
-- Invariant: the token never holds more than before, and no other token can take its span in between.
purge(ARGV[5], true)
local mode, a, b, minted, metadata = holder(ARGV[1])
if not mode then return {0} end
if tonumber(ARGV[3]) < tonumber(a) or tonumber(ARGV[4]) > tonumber(b) then return {-1} end
if ARGV[2] ~= mode and not (mode == 'w' and ARGV[2] == 'r') then return {-1} end
local left = redis.call('ZSCORE', ends, ARGV[1]) - NOW
remove_holder(ARGV[1], mode, a, b)
write_holder(ARGV[1], ARGV[2], ARGV[3], ARGV[4], minted, metadata, left)
return {1, unpack(wake_waiters(0))}
