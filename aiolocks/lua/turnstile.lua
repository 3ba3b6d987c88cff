-- Turnstiles.

--# turnstile_enter
-- Lets a token through the turnstile; the first token begins a window.
-- Sent again with a token that went through, it is the same place.
--
-- KEYS  1 places
-- ARGV  1 token   2 window, ms   3 how many places are remembered at most
-- Returns the place: 1 for the token that began the window
--
-- Invariants:
-- - places is a sorted set of tokens by place, with the ttl of the window, which no step sets again while there is one. The
--   next place is one after the last one there: a step counts only when it adds a token, so no token is counted twice;
-- - the token that began the window stays; of the others, the oldest are forgotten first.
local places, token = KEYS[1], ARGV[1]

local place = redis.call('ZSCORE', places, token)
if place then return tonumber(place) end

local last_token, last = unpack(redis.call('ZRANGE', places, -1, -1, 'WITHSCORES'))
if not last then
  redis.call('ZADD', places, 1, token)
  redis.call('PEXPIRE', places, ARGV[2])
  return 1
end
if not is_token(last_token) or not string.find(last, '^%d+$') then reject_foreign(places) end
redis.call('ZADD', places, last + 1, token)
if redis.call('PTTL', places) < 0 then redis.call('PEXPIRE', places, ARGV[2]) end  -- lost, as by PERSIST: the window must end
if redis.call('ZCARD', places) > tonumber(ARGV[3]) then
  redis.call('ZREM', places, redis.call('ZRANGE', places, 1, 1)[1])
end
return last + 1

--# turnstile_end
-- Ends the window that this token began; the window of another token stays as it is.
--
-- KEYS  1 places
-- ARGV  1 token
-- Returns {1 when it was ended, 0 when the window is not of this token (any more)}
--
-- Invariant: writes with DEL alone, so that it works on a server that is out of memory.
if redis.call('ZSCORE', KEYS[1], ARGV[1]) ~= '1' then return {0} end
redis.call('DEL', KEYS[1])
return {1}
