-- Takes the lock from its holder, before all waiters.
-- Sent again with the token that already holds the lock, it is the same grant with a new ttl.
--
-- KEYS  1 lock   2 fence   3 queue   4 nest
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON
-- Returns {1, fencing token, number of waiters in the queue, the former value of the lock key ('': none)}
--
-- Invariant: the lock key is deleted before it is written, so that its holder is told of that by events, too.
local lock, fence, queue, nest, token = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1]
local held, others = known(lock, redis.call('GET', lock)), number_in(queue)
if held_by(token, held) then
  redis.call('PEXPIRE', lock, ARGV[2])
  keep(fence, ARGV[3])
  return {1, minted_in(held), others, ''}
end
local left, minted = redis.call('PTTL', lock), mint(fence, MICROSECONDS, ARGV[3])
local taken = token .. ':' .. minted .. ':' .. ARGV[4]
if held then leave_mark(string.match(held, '^%x+'), taken, left) end
redis.call('DEL', lock, nest)
redis.call('SET', lock, taken, 'PX', ARGV[2])
return {1, minted, others, held or ''}
