-- Before multi_acquire: the holder releases the locks, and the next waiter of its session takes all of them, in one step.
--
-- ARGV  the arguments of multi_acquire, and then the token of the holder
-- Returns {-1} when that token does not hold all the locks: then nothing was done
--
-- Invariant: it releases all of them or none. Where the holder has lost some, only multi_release frees the others.
do
  local from, n = table.remove(ARGV), tonumber(ARGV[1])
  for i = 1, n do
    if not held_by(from, redis.call('GET', KEYS[i])) then return {-1} end
  end
  for i = 1, n do
    redis.call('PEXPIRE', KEYS[n + i], ARGV[4])
    redis.call('DEL', KEYS[i])
  end
end
