-- Sets the ttl again for the token that holds a span. Never creates a span that is gone.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…19 pairs of ends   20 bell
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 seat
-- Returns 1 when renewed, 0 when the token does not hold a span, or the mark of who has freed it
if purge(ARGV[4], true) > 0 then wake_waiters(0) end
local mode, a, b, minted, metadata = holder(ARGV[1])
if not mode then return thief_of(ARGV[1]) end
write_holder(ARGV[1], mode, a, b, minted, metadata, tonumber(ARGV[2]))
keep(fence, ARGV[3])
return redis.call('HGET', spans, ARGV[1]) and 1 or 0  -- read last: a connection that tracks it is told of each later change
