-- Before lock_acquire: the holder releases the lock, and the next waiter of its session takes it, in one step.
--
-- ARGV  the arguments of lock_acquire, and then the token of the holder
-- Returns {-1} when that token does not hold the lock: then nothing was done
--
-- Invariant: it wakes no waiter. If lock_acquire refuses the next waiter, it tells that waiter that the lock is free.
do
  local from = table.remove(ARGV)
  local held = redis.call('GET', KEYS[1])
  if not held or string.sub(held, 1, #from + 1) ~= from .. ':' then return {-1} end
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  redis.call('DEL', KEYS[1])
end
