-- The terms of a leadership: leases of permits of which there is one, each with what stands beside it.
--
-- KEYS of every step, besides those of permits   7 terms   8 news
--
-- Invariants:
-- - terms is a sorted set by fencing token of 'fencing token:metadata', of the last leases that were granted: it is written
--   in the step that grants a lease or changes what stands beside it, so that no term is missing;
-- - each step that begins, changes or ends a term writes news and deletes it: those who observe hear the deletion.
local MOST_TERMS, NEWS_TTL = 64, 1000
local terms, news = KEYS[7], KEYS[8]
local ours = pcall(redis.call, 'ZCARD', terms)  -- if not, the leases go on as if there was nothing
local announced = false
local hold_lease = hold
local drop_lease = drop
local wake_waiter = wake

local function tell()
  redis.call('SET', news, '', 'PX', NEWS_TTL)
  redis.call('DEL', news)
  announced = true
end

-- Puts the term in place of the one with the same fencing token, and keeps all for as long as the fence, or for that
-- many ms.
local function note(minted, metadata, ms)
  if not ours then return end
  local term = minted .. ':' .. metadata
  if not redis.call('ZSCORE', terms, term) then
    redis.call('ZREMRANGEBYSCORE', terms, minted, minted)
    redis.call('ZADD', terms, minted, term)
    redis.call('ZREMRANGEBYRANK', terms, 0, -MOST_TERMS - 1)
    tell()
  end
  keep(terms, math.max(redis.call('PTTL', fence), ms))
end

local function hold(token, permits, minted, metadata, ttl)
  hold_lease(token, permits, minted, metadata, ttl)
  note(minted, metadata, 10 * ttl)
end

local function drop(token)
  drop_lease(token)
  tell()
end

-- The server does not tell the session whose step it was: that one finds the news among the bells.
local function wake(fair, rank, except)
  local rung = wake_waiter(fair, rank, except)
  if announced then rung[#rung + 1] = news end
  return rung
end
