-- Before lock_acquire: the holder lets go, and the next waiter of its session takes the lock, in one step.
--
-- ARGV  those of lock_acquire, and then the token that lets go
-- Returns {-1} when that token does not hold the lock: then nothing was done
--
-- Invariant: it wakes nobody, and a waiter that is refused then is told that the lock is free.
do
  local from = table.remove(ARGV)
  local held = redis.call('GET', KEYS[1])
  if not held or string.sub(held, 1, #from + 1) ~= from .. ':' then return {-1} end
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  redis.call('DEL', KEYS[1])
end
