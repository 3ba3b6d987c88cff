-- Tells whether the token holds all the locks.
--
-- KEYS  locks
-- ARGV  1 token
-- Returns 1 or 0
for i = 1, #KEYS do
  if not held_by(ARGV[1], redis.call('GET', KEYS[i])) then return 0 end
end
return 1
