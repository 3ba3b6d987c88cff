-- Removes a token of the owner, frees the lock if it was the last one, and leaves the queue; then, if the lock is free,
-- wakes the next waiter. The fence stays for its retention.
--
-- KEYS  1 lock   2 fence   3 queue   4 nest   5 bell (only from a waiter that leaves the queue with it)
-- ARGV  1 token   2 retention of the fence, ms   3 wake the next ('1')
-- Returns {1 when it was one of the owner's, or else 0, or the lease that has taken the owner's place, bells rung…}
purge()
local freed, free = 0, nil
if deadline_of(ARGV[1]) then
  freed = 1
  keep(fence, ARGV[2])
  free = not remove_token(ARGV[1])
  if free then redis.call('DEL', lock) else set_ttls() end
else
  free = redis.call('EXISTS', lock) == 0
  if not bell then freed = thief_of(owner_of(ARGV[1])) end  -- a waiter that leaves was never its owner
end
if bell then
  redis.call('ZREM', queue, bell)
  redis.call('DEL', bell)
end
if ARGV[3] == '1' and free then return {freed, wake(queue)} end
return {freed}
