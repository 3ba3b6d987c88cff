-- Gives a lease from one token to another of the same owner, with a new ttl.
-- Sent again after it was done, it is the same success. The fencing token stays.
--
-- KEYS  1 lock   2 fence   3 queue   4 nest
-- ARGV  1 token that holds   2 token that will hold   3 ttl, ms   4 retention of the fence, ms
-- Returns the fencing token, or '' when neither token holds the lock
--
-- Invariant: of several sessions that adopt with one old token, exactly one finds that token in the nest.
purge()
local held = deadline_of(ARGV[1]) or deadline_of(ARGV[2])
if not held then return '' end
redis.call('ZADD', nest, whole(NOW + ARGV[3]), ARGV[2])  -- first: a nest that is empty in between would be gone
redis.call('ZREM', nest, ARGV[1])
set_ttls()
keep(fence, ARGV[4])
return minted_in(redis.call('GET', lock))
