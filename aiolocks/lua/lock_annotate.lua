-- Changes the metadata of the lock if the token holds it. Never creates a lock that is gone; ttl and fencing token stay.
-- Sent again, it does the same.
--
-- KEYS  1 lock
-- ARGV  1 token   2 metadata, JSON
-- Returns 1 when changed, 0 when the token does not hold the lock
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, #ARGV[1] + 1) ~= ARGV[1] .. ':' then return 0 end
redis.call('SET', KEYS[1], ARGV[1] .. string.match(held, ':%d+:') .. ARGV[2], 'KEEPTTL')
return 1
