-- Tells the leader, and the terms that began after a known one. It writes nothing.
--
-- KEYS  1 holders   2 leases   3 terms
-- ARGV  1 fencing token of the last term that is known; '+inf' for none
-- Returns {the server's time in microseconds, fencing token of the newest term ('0': there is none),
--          ms left of the leader's lease (-1: no leader), that lease 'permits:fencing token:metadata',
--          each later term 'fencing token:metadata'…}
local holders, leases, terms = KEYS[1], KEYS[2], KEYS[3]
local newest = redis.call('ZRANGE', terms, -1, -1)[1]
if newest and not string.find(newest, '^%d+:') then reject_foreign(terms) end
local last = redis.call('ZRANGE', holders, -1, -1, 'WITHSCORES')
local left, lease = last[2] and last[2] - NOW or 0, last[1] and redis.call('HGET', leases, last[1])
if left <= 0 or not lease then left, lease = -1, '' end
local since = redis.call('ZRANGEBYSCORE', terms, '(' .. ARGV[1], '+inf')
return {whole(MICROSECONDS), newest and string.match(newest, '^%d+') or '0', left, lease, unpack(since)}
