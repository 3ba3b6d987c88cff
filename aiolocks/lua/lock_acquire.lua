-- Takes the lock, or says how long its holder may keep it.
-- Sent again with the token that already holds it, it is the same grant with its ttl set anew.
--
-- KEYS  1 lock   2 fence   3 queue   4 bell (only from who stands in the queue with it)
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 only in turn ('1')
-- Returns {1, fencing token, how many others stand in the queue}
--      or {0, remaining ms of the holder (-1: it has no ttl; -2: it is free, and another's turn)}
--
-- Invariants: the lock key is 'token:fencing token:metadata', always with a ttl; the fence is at
-- least every fencing token that was granted under this name while it was kept; who gets in leaves the queue.
local lock, fence, queue, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, ttl, retention = ARGV[1], ARGV[2], ARGV[3]

local held = redis.call('GET', lock)
local minted, others
if held then
  if string.sub(held, 1, #token + 1) ~= token .. ':' then
    return {0, redis.call('PTTL', lock)}
  end
  minted = string.match(held, ':(%d+):')
  others = redis.call('ZCARD', queue)
  redis.call('PEXPIRE', lock, ttl)
  redis.call('PEXPIRE', fence, retention)
else
  if ARGV[5] == '1' then
    local first = redis.call('ZRANGE', queue, 0, 0)[1]
    if first and first ~= bell then return {0, -2} end
  end
  -- The server's clock is the floor, so that a lost fence (restart, eviction) does not begin again at 1.
  -- Microseconds since 1970 are exact in a double, that is below 2^53, until 2255; only %.0f prints them in
  -- full. A fence beyond that is nothing that was ever granted.
  local time = redis.call('TIME')
  others = redis.call('ZCARD', queue)  -- read before anything is written: what is refused has done nothing
  minted = time[1] * 1000000 + time[2]
  local last = tonumber(redis.call('GET', fence) or 0) or 0
  if last >= minted and last < 9007199254740992 then minted = last + 1 end
  minted = string.format('%.0f', minted)
  redis.call('SET', lock, token .. ':' .. minted .. ':' .. ARGV[4], 'PX', ttl)
  redis.call('SET', fence, minted, 'PX', retention)
end

if bell then
  others = others - redis.call('ZREM', queue, bell)
  redis.call('DEL', bell)
end
return {1, minted, others}
