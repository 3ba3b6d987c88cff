-- Before multi_acquire: the holder lets go, and the next waiter of its session for the same locks takes them, in one step.
--
-- ARGV  those of multi_acquire, and then the token that lets go
-- Returns {-1} when that token does not hold all the locks: then nothing was done
--
-- Invariant: all or none of them are let go of here; a release alone frees those that are left.
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
