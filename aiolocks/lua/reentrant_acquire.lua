-- Takes the lock, or takes it once more for its owner, or says how long it may be held elsewhere.
-- Sent again with a token that already holds, it is the same grant with its ttl set anew.
--
-- KEYS  1 lock   2 fence   3 queue   4 nest   5 bell (only from who stands in the queue with it)
-- ARGV  1 token, which begins with its owner   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON
--       5 only in turn ('1')   6 is told who holds it, if refused ('1')
-- Returns {1, fencing token, how many others stand in the queue, how many leases the owner has}
--      or {0, remaining ms of the holder (-1: it has no ttl; -2: it is free, and another's turn)[, who holds it, as
--      lock_acquire tells it]}
--
-- Invariant: the fencing token is minted when the lock was free, and stays while its owner nests.
local token, ttl = ARGV[1], tonumber(ARGV[2])
local held = known(lock, redis.call('GET', lock))
local others = number_in(queue)
local nested_first = redis.call('ZRANGE', nest, 0, 0)[1]
if nested_first and not is_token(nested_first) then foreign(nest) end
if held and not held_by(owner_of(token), held) then
  local left = redis.call('PTTL', lock)
  if ARGV[6] ~= '1' then return {0, left} end
  return {0, left, {whole(MICROSECONDS), '', '', left, held}}
end

local minted
if held then
  minted = minted_in(held)
  purge()
  keep(fence, ARGV[3])
else
  local first = redis.call('ZRANGE', queue, 0, 0)[1]
  if ARGV[5] == '1' and first and first ~= bell then return {0, -2} end
  minted = seal(fence, MICROSECONDS, ARGV[3])
  redis.call('SET', lock, owner_of(token) .. ':' .. minted .. ':' .. ARGV[4], 'PX', ttl)
  if nested_first then redis.call('DEL', nest) end
end
redis.call('ZADD', nest, whole(NOW + ttl), token)
last_to_the_end()
if bell then
  others = others - redis.call('ZREM', queue, bell)
  redis.call('DEL', bell)
end
return {1, minted, others, redis.call('ZCARD', nest)}
