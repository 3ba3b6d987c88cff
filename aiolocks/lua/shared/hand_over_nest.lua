-- Before reentrant_acquire: the owner releases a token, and the next waiter of its session asks for the lock, in one step.
--
-- ARGV  the arguments of reentrant_acquire, and then the token that is released
-- Returns {-1} when the owner does not hold the lock with that token: then no lease has changed
--
-- Invariant: the lock is free after that only if it was the owner's last token.
do
  local from = table.remove(ARGV)
  purge()
  if not deadline_of(from) then return {-1} end
  keep(fence, ARGV[3])
  if remove_token(from) then set_ttls() else redis.call('DEL', lock) end
end
