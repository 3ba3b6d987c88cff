-- Gives a span from one token to another, with a new ttl and the new holder's metadata.
-- Sent again after it was done, it is the same success. The fencing token stays.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…19 pairs of ends   20 bell
-- ARGV  1 token that holds   2 token that will hold   3 ttl, ms   4 retention of the fence, ms   5 metadata, JSON
--       6 mode   7 a   8 b   9 seat
-- Returns the fencing token, or '' when neither token holds this span
--
-- Invariant: of several sessions that adopt with one old token, exactly one finds that token in spans.
purge(ARGV[9], true)
local token = holder(ARGV[1]) and ARGV[1] or ARGV[2]
local mode, a, b, minted = holder(token)
if mode ~= ARGV[6] or a ~= ARGV[7] or b ~= ARGV[8] then return '' end
write_holder(ARGV[2], mode, a, b, minted, ARGV[5], tonumber(ARGV[3]))  -- first: a key that is empty in between would be gone
if token ~= ARGV[2] then
  redis.call('ZREM', ends, token)
  remove_from_side(mode, token)
  redis.call('HDEL', spans, token)
end
keep(fence, ARGV[4])
return minted
