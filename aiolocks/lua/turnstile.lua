-- Turnstiles.

--# turnstile_enter
-- Lets a token through the turnstile; the first token begins a window.
-- Sent again with a token that went through, it is the same place.
--
-- KEYS  1 places
-- ARGV  1 token   2 window, ms   3 from how many places on the oldest may be forgotten
--       4 for how long each is remembered, at least, ms--       5 how many are remembered at most
-- Returns the place: 1 for the token that began the window
--
-- Invariants:
-- - places is a sorted set of tokens by place, with the ttl of the window, which no step sets again while there is one. The
--   next place is one after the last one there: a step counts only when it adds a token, so no token is counted twice;
-- - each SPAN-th place has a mark beside its token, in the form of a token: NOBODY and the server's time, ms, in 16 digits;
-- - the token that began the window stays. Of the others, the oldest are forgotten first, up to a mark that is old enough, or
--   to one that an earlier version has not made. Where too many would have to be remembered, the token is refused.
local places, token = KEYS[1], ARGV[1]
local SPAN, NOBODY = 16, string.rep('0', 16)

local place = redis.call('ZSCORE', places, token)
if place then return tonumber(place) end

local last_token, last = unpack(redis.call('ZRANGE', places, -1, -1, 'WITHSCORES'))
if not last then
  redis.call('ZADD', places, 1, token)
  redis.call('PEXPIRE', places, ARGV[2])
  return 1
end
if not is_token(last_token) or not string.find(last, '^%d+$') then reject_foreign(places) end
place = last + 1

local number, forgotten = redis.call('ZCARD', places), nil
if number >= tonumber(ARGV[3]) then
  local oldest = redis.call('ZRANGE', places, 1, 1, 'WITHSCORES')[2]
  local ends = math.ceil(oldest / SPAN) * SPAN
  local mark = redis.call('ZRANGEBYSCORE', places, ends, ends)[1] or ''
  local since = string.match(mark, '^' .. NOBODY .. '(%d+)$')
  if ends < place and not (since and NOW < since + ARGV[4]) then forgotten = ends end
  if not forgotten and number >= tonumber(ARGV[5]) then error('CROWDED ' .. ARGV[5], 0) end
end
redis.call('ZADD', places, place, token)
if place % SPAN == 0 then redis.call('ZADD', places, place, NOBODY .. string.format('%016.0f', NOW)) end
if redis.call('PTTL', places) < 0 then redis.call('PEXPIRE', places, ARGV[2]) end  -- lost, as by PERSIST: the window must end
if forgotten then redis.call('ZREMRANGEBYSCORE', places, 2, forgotten) end
return place

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
