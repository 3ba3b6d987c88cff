-- Takes the lock, also once more for its owner, or tells how long its holder may keep it and gives a waiter a seat.
-- Sent again with a token that already holds the lock, it is the same grant with a new ttl.
--
-- KEYS  1 lock   2 fence   3 queue   4 nest   5 bell (only from an asker that will wait)
-- ARGV  1 token, which begins with its owner   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON
--       5 flags: t only in turn, w will wait if refused, q may have a bell, l leaves the queue, h is told of the holder
-- Returns {1, fencing token, number of others in the queue, number of the owner's leases}
--      or {0, remaining ms of the holder (-1: it has no ttl; -2: the lock is free, and another's turn)[, the holder][, its
--      own bell], as lock_acquire tells it}
--
-- Invariant: the fencing token is minted when the lock was free, and stays while the owner has a lease.
local token, ttl, flags = ARGV[1], tonumber(ARGV[2]), ARGV[5]
local held = known(lock, redis.call('GET', lock))
local others = number_in(queue)
local nested_first = redis.call('ZRANGE', nest, 0, 0)[1]
if nested_first and not is_token(nested_first) then reject_foreign(nest) end
if held and not held_by(owner_of(token), held) then
  local reply = {0, redis.call('PTTL', lock)}
  if has(flags, 'h') then reply[3] = {whole(MICROSECONDS), '', '', reply[2], held} end
  reply[#reply + 1] = enqueue_in_each({queue}, bell, flags)
  return reply
end

local minted
if held then
  minted = minted_in(held)
  purge()
  keep(fence, ARGV[3])
else
  local first = redis.call('ZRANGE', queue, 0, 0)[1]
  if has(flags, 't') and first and first ~= bell then return {0, -2, enqueue_in_each({queue}, bell, flags)} end
  minted = mint(fence, MICROSECONDS, ARGV[3])
  redis.call('SET', lock, owner_of(token) .. ':' .. minted .. ':' .. ARGV[4], 'PX', ttl)
  if nested_first then redis.call('DEL', nest) end
end
redis.call('ZADD', nest, whole(NOW + ttl), token)
set_ttls()
if has(flags, 'l') then
  others = others - redis.call('ZREM', queue, bell)
  redis.call('DEL', bell)
end
return {1, minted, others, redis.call('ZCARD', nest)}
