-- Tells whether the token is one of the owner's, and the lock belongs to that owner.
--
-- KEYS  1 lock   2 fence   3 queue   4 nest
-- ARGV  1 token
-- Returns 1 or 0
purge()
return deadline_of(ARGV[1]) and 1 or 0
