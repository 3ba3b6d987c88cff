-- Gives the lock from one token to another, with a new ttl and the new holder's metadata.
-- Sent again after it was done, it is the same success. The fencing token stays.
--
-- KEYS  1 lock   2 fence
-- ARGV  1 token that holds   2 token that will hold   3 ttl, ms   4 retention of the fence, ms   5 metadata, JSON
-- Returns the fencing token, or '' when neither token holds the lock
--
-- Invariant: of several sessions that adopt with one old token, exactly one finds that token in the lock key.
local held = redis.call('GET', KEYS[1])
if not held then return '' end
local holder, fencing = string.match(held, '^(%x+):(%d+):')
if holder ~= ARGV[1] and holder ~= ARGV[2] then return '' end
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('SET', KEYS[1], ARGV[2] .. ':' .. fencing .. ':' .. ARGV[5], 'PX', ARGV[3])
return fencing
