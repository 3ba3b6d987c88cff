-- Tells whether the token holds all the locks.
--
-- KEYS  locks
-- ARGV  1 token
-- Returns 1 or 0
local ok, held = pcall(redis.call, 'MGET', unpack(KEYS))  -- at once, as in multi_renew
for i = 1, #KEYS do
  if not held_by(ARGV[1], ok and held[i] or redis.call('GET', KEYS[i])) then return 0 end
end
return 1
