-- Rate limits.

--# ratelimit_acquire
-- Reserves a moment for n requests of each limit, of all limits or of none: GCRA on the server's clock.
-- Sent again with a token that has a reservation, it is the same moment.
--
-- KEYS  reservations of each limit
-- ARGV  1 token   2 n   3 the longest wait, µs: if a moment is later, nothing is reserved; -1: only asked
--       and then for each limit: µs between two requests, its burst, its `per` in µs
-- Returns {1 when reserved else 0, and for each limit: µs until its moment, µs until its bucket is full again}
--
-- Invariants:
-- - reservations is a sorted set. The score of a token is the time (µs) at which the bucket would be full again if nobody
--   came after; `seen` is when a step wrote last, `interval` and `burst` are those of that step, `before` is the last
--   reservation whose token was forgotten. So the highest score says when the bucket is full, whoever has left;
-- - a moment is never earlier than its score less burst * interval, and scores of reservations that stay are at least
--   n * interval apart: no window of `per` has more than burst + limit;
-- - a clock that was set back counts from `seen` on, and leaves a bucket full again after `per` at the latest; if the interval
--   was changed, the bucket has as many requests in it as before. In both cases, tokens are forgotten, moments stay.
local KEPT = 64        -- tokens that are remembered at most, the last ones: about 3 KB
local LINGERS = 10000  -- ms for which a token is remembered at least, so that a request that is sent again is the same

local token, n, longest = ARGV[1], ARGV[2], tonumber(ARGV[3])

-- Returns the µs until the bucket is full again. If its entries do not count any more as they are, they are replaced.
local function backlog_of(key, interval, burst, per)
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  if not last then return 0 end
  local seen, was = redis.call('ZSCORE', key, 'seen'), redis.call('ZSCORE', key, 'interval')
  if not seen or not was then reject_foreign(key) end
  local back = tonumber(seen) > MICROSECONDS
  local backlog = math.max(0, last - math.max(seen, MICROSECONDS))
  if back then backlog = math.min(backlog, per) end
  if tonumber(was) == interval and not back then return backlog end
  backlog = math.ceil(backlog / was * interval)
  redis.call('DEL', key)
  redis.call('ZADD', key, whole(MICROSECONDS), 'seen', whole(MICROSECONDS + backlog), 'before',
    string.format('%.17g', interval), 'interval', burst, 'burst')
  redis.call('PEXPIRE', key, math.ceil(backlog / 1000) + LINGERS)
  return backlog
end

local function forget_oldest(key)
  if redis.call('ZCARD', key) <= KEPT + 4 then return end
  local lowest = redis.call('ZRANGE', key, 2, 4, 'WITHSCORES')  -- behind interval and burst
  for i = 1, 5, 2 do
    if is_token(lowest[i]) then
      redis.call('ZADD', key, lowest[i + 1], 'before')
      return redis.call('ZREM', key, lowest[i])
    end
  end
end

local function figures_of(i)
  local interval, burst, per = unpack(ARGV, 3 * i + 1, 3 * i + 3)
  return tonumber(interval), burst, tonumber(per)
end

local granted, answer, taken = 1, {}, {}
for i, key in ipairs(KEYS) do
  local interval, burst, per = figures_of(i)
  local room, backlog = math.ceil(burst * interval), backlog_of(key, interval, burst, per)
  local reserved = redis.call('ZSCORE', key, token)
  local full = reserved and reserved - MICROSECONDS or backlog + math.ceil(n * interval)
  local wait = math.max(0, full - room)
  if not reserved and wait > longest then granted = 0 end
  taken[i] = not reserved and full
  answer[2 * i], answer[2 * i + 1] = wait, backlog
end
answer[1] = granted
if granted == 0 then return answer end

for i, key in ipairs(KEYS) do
  if taken[i] then
    local interval, burst = figures_of(i)
    redis.call('ZADD', key, whole(MICROSECONDS), 'seen', whole(MICROSECONDS + taken[i]), token,
      string.format('%.17g', interval), 'interval', burst, 'burst')
    forget_oldest(key)
    redis.call('PEXPIRE', key, math.ceil(taken[i] / 1000) + LINGERS)
    answer[2 * i + 1] = taken[i]
  end
end
return answer

--# ratelimit_give_back
-- Gives the moment of a token back, of each limit. The next to ask gets it if nobody stands behind it.
-- Sent again, or before the reservation, it changes nothing.
--
-- KEYS  reservations of each limit
-- ARGV  1 token
-- Returns how many limits had a reservation of this token
--
-- Invariant: writes with ZREM alone, so that it works on a server that is out of memory. The scores of others stay.
local given = 0
for _, key in ipairs(KEYS) do
  given = given + redis.call('ZREM', key, ARGV[1])
end
return given
