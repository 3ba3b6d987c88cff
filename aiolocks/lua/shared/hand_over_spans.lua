-- Before spans_acquire: releases the span of a writer or an upgradable, so that one step also acquires for the next waiter of
-- the same session.
--
-- ARGV  those of spans_acquire, and then the token that is released
-- Returns {-1} when that token does not hold, or its lease has ended: then the step changes nothing
--
-- Invariant: the step does what a release that wakes and then that acquire do. A writer that it calls elsewhere has a
-- reservation, and a reader a turn, which keep the next writer out; and an upgradable that it calls elsewhere keeps out the
-- next upgradable. Only a waiter that asks in this step needs no ring. A try that will not wait is no such waiter: another
-- waiter of its session may have the same bell.
do
  local from = table.remove(ARGV)
  local mode, a, b = holder(from)
  if not mode then return {-1} end
  remove_holder(from, mode, a, b)
  keep(fence, ARGV[3])
  asking = has(ARGV[11], 'w') and bell or ''
end
