-- Writes the fencing token of a lease back to one of its masters, which has granted the lease before, and leaves the queue.
-- Sent again, it does the same. The ttl stays.
--
-- KEYS  1 lock   2 fence   3 queue   4 bell (the last two only from a waiter that is in the queue with that bell)
-- ARGV  1 token   2 fencing token of the lease   3 retention of the fence, ms   4 the lease was given already ('1')
-- Returns 1 when the lock carries the token and the fencing token, 0 when it does not
--
-- Invariants:
-- - a waiter is in the queue until its lease is confirmed;
-- - before a lease is given, only a master that still has its token, and minted nothing larger for it, confirms it;
-- - the fence is at least every fencing token that was confirmed here while it was kept;
-- - a fencing token that was written back has a leading zero: the lease got it, and this master did not mint it.
local lock, fence = KEYS[1], KEYS[2]
local token, sealed = ARGV[1], ARGV[2]

local holder, minted, metadata = string.match(redis.call('GET', lock) or '', '^(%x+):(%d+):(.*)$')
if holder ~= token then return 0 end
if ARGV[4] ~= '1' and tonumber(minted) > tonumber(sealed) then return 0 end

redis.call('PEXPIRE', fence, ARGV[3])
redis.call('SET', lock, token .. ':0' .. sealed .. ':' .. metadata, 'KEEPTTL')
if (tonumber(redis.call('GET', fence) or 0) or 0) < tonumber(sealed) then
  redis.call('SET', fence, sealed, 'PX', ARGV[3])
end
if KEYS[4] then
  redis.call('ZREM', KEYS[3], KEYS[4])
  redis.call('DEL', KEYS[4])
end
return 1
