-- Before permits_acquire: a holder lets go, and the next waiter of its session asks, in one step.
--
-- ARGV  those of permits_acquire, and then the token that lets go
-- Returns {-1} when that token does not hold, or not any more: then nothing was done
--
-- Invariant: it wakes nobody. The acquire is said to owe that, for what it does not take.
do
  local from = table.remove(ARGV)
  local ends = redis.call('ZSCORE', holders, from)
  if not ends or tonumber(ends) <= NOW or not lease_of(from) then return {-1} end
  drop(from)
end
