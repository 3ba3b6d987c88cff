-- Changes the metadata of all the locks if the token holds all of them. Never creates a lock that is gone; ttls and fencing
-- tokens stay. Sent again, it does the same.
--
-- KEYS  locks
-- ARGV  1 token   2 metadata, JSON
-- Returns 1 when changed, 0 when the token does not hold all of them: then nothing was done
local held = {}
for i = 1, #KEYS do
  held[i] = held_by(ARGV[1], redis.call('GET', KEYS[i]))
  if not held[i] then return 0 end
end
for i = 1, #KEYS do
  redis.call('SET', KEYS[i], ARGV[1] .. ':' .. minted_in(held[i]) .. ':' .. ARGV[2], 'KEEPTTL')
end
return 1
