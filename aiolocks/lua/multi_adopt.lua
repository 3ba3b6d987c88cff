-- Gives all the locks from one token to another, with a new ttl and the new holder's metadata.
-- Sent again after it was done, it is the same success. The fencing token stays.
--
-- KEYS  n locks   n fences
-- ARGV  1 n   2 token that holds   3 token that will hold   4 ttl, ms   5 retention of the fences, ms   6 metadata, JSON
-- Returns the fencing token, or '' when neither token holds all of them
--
-- Invariant: of several sessions that adopt with one old token, exactly one finds that token in the lock keys.
local n, minted = tonumber(ARGV[1]), ''
for i = 1, n do
  local held = redis.call('GET', KEYS[i])
  if not held_by(ARGV[2], held) and not held_by(ARGV[3], held) then return '' end
  minted = minted_in(held)
end
for i = 1, n do
  redis.call('PEXPIRE', KEYS[n + i], ARGV[5])
  redis.call('SET', KEYS[i], ARGV[3] .. ':' .. minted .. ':' .. ARGV[6], 'PX', ARGV[4])
end
return minted
