-- Sets the ttl again for a token of the owner. Never creates a token that is gone, and shortens no other lease of the
-- owner.
--
-- KEYS  1 lock   2 fence   3 queue   4 nest
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms
-- Returns 1 when renewed, 0 when the token does not hold the lock, or the lease that has taken its owner's place
purge()
if not deadline_of(ARGV[1]) then return thief_of(owner_of(ARGV[1])) end
redis.call('ZADD', nest, whole(NOW + ARGV[2]), ARGV[1])
set_ttls()
keep(fence, ARGV[3])
return redis.call('GET', lock) and 1 or 0  -- read last: a connection that tracks it is told of each later change
