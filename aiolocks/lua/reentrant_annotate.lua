-- Changes the metadata of the lock, which all leases of its owner share, if the token is one of the owner's. Never
-- creates a lock that is gone; ttl and fencing token stay. Sent again, it does the same.
--
-- KEYS  1 lock   2 fence   3 queue   4 nest
-- ARGV  1 token   2 metadata, JSON
-- Returns 1 when changed, 0 when the token does not hold the lock
local deadline = deadline_of(ARGV[1])
if not deadline or tonumber(deadline) <= NOW then return 0 end
local minted = minted_in(redis.call('GET', lock))
redis.call('SET', lock, owner_of(ARGV[1]) .. ':' .. minted .. ':' .. ARGV[2], 'KEEPTTL')
return 1
