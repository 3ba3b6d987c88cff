-- Takes the lock from another holder, before all waiters; from its owner, it takes it once more.
-- Sent again with a token that already holds the lock, it is the same grant with a new ttl.
--
-- KEYS  1 lock   2 fence   3 queue   4 nest
-- ARGV  1 token, which begins with its owner   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON
-- Returns {1, fencing token, number of waiters in the queue, the former value of the lock key ('': none, or its owner's),
--      number of the owner's leases}
local token, ttl = ARGV[1], tonumber(ARGV[2])
local held, others = known(lock, redis.call('GET', lock)), number_in(queue)
local minted, lost = held and minted_in(held), ''
if held_by(owner_of(token), held) then
  purge()
  keep(fence, ARGV[3])
else
  local left = redis.call('PTTL', lock)
  minted = mint(fence, MICROSECONDS, ARGV[3])
  local taken = owner_of(token) .. ':' .. minted .. ':' .. ARGV[4]
  if held then leave_mark(string.match(held, '^%x+'), taken, left) end
  lost = held or ''
  redis.call('DEL', lock, nest)
  redis.call('SET', lock, taken, 'PX', ttl)
end
redis.call('ZADD', nest, whole(NOW + ttl), token)
set_ttls()
return {1, minted, others, lost, redis.call('ZCARD', nest)}
