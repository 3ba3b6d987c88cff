-- Before limits_acquire: releases a lease, so that one step also acquires for the next waiter of the same session.
--
-- ARGV  those of limits_acquire, and then the token that is released
-- Returns {-1} when that token does not hold, or its lease has ended: then the step changes nothing
--
-- Invariant: the step does what a release that wakes and then that acquire do. Only a waiter that asks in this step needs no
-- ring. A try that will not wait is no such waiter: another waiter of its session may have the same bell.
do
  local from = table.remove(ARGV)
  local ends = redis.call('ZSCORE', holders, from)
  if not ends or tonumber(ends) <= NOW or not lease_of(from) then return {-1} end
  if has(ARGV[7], 'w') then asking = bell end
  purge()  -- before any waiter is called: permits of the dead are for the line with the first turn, too
  drop(from)
  keep(fence, ARGV[3])
  wake()  -- before the acquire: without any lease, that would look at all lines
end
