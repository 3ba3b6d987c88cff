-- Before reentrant_acquire: a token of the owner lets go, and the next waiter of its session asks, in one step.
--
-- ARGV  those of reentrant_acquire, and then the token that lets go
-- Returns {-1} when that token does not hold: then no lease has changed
--
-- Invariant: the lock is free after that only if it was the owner's last token.
do
  local from = table.remove(ARGV)
  purge()
  if not nested(from) then return {-1} end
  keep(fence, ARGV[3])
  if take_out(from) then last_to_the_end() else redis.call('DEL', lock) end
end
