-- Before permits_acquire: releases a lease, so that one step also acquires for the next waiter of the same session.
--
-- ARGV  those of permits_acquire, and then the token that is released
-- Returns {-1} when that token does not hold, or its lease has ended: then the step changes nothing
--
-- Invariant: it wakes no waiter. The acquire has the flag o, and wakes one for the permits that it does not take.
do
  local from = table.remove(ARGV)
  local ends = redis.call('ZSCORE', holders, from)
  if not ends or tonumber(ends) <= NOW or not lease_of(from) then return {-1} end
  drop(from)
end
