-- Frees the lock if the token holds it, and leaves the queue; then, if the lock is free, wakes who is next.
-- The fence stays for its retention.
--
-- KEYS  1 lock   2 fence   3 queue   4 bell (only from who leaves the queue with it)
-- ARGV  1 token   2 retention of the fence, ms   3 wake the next ('1')
-- Returns {1 when freed, 0 when the token does not hold the lock} and, if one was rung, its bell
--
-- Invariants:
-- - at most one is woken: the first whose bell stands; those before it are dead or were woken already;
-- - writes with DEL, ZREM and PEXPIRE alone, so that it works on a server that is out of memory.
local lock, queue, bell = KEYS[1], KEYS[3], KEYS[4]

local freed = 0
local held = redis.call('GET', lock)
if held and string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. ':' then
  redis.call('DEL', lock)
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  freed, held = 1, false
end
if bell then
  redis.call('ZREM', queue, bell)
  redis.call('DEL', bell)
end
while ARGV[3] == '1' and not held do
  -- The bells are not in KEYS: they stand in the queue, and share its slot.
  local first = redis.call('ZRANGE', queue, 0, 0)[1]
  if not first then break end
  if redis.call('DEL', first) == 1 then return {freed, first} end
  redis.call('ZREM', queue, first)
end
return {freed}
