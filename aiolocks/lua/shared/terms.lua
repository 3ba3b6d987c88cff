-- The terms of a leadership: the leases of its one permit, each with its metadata.
--
-- KEYS of every step, besides those of permits   7 terms   8 news
--
-- Invariants:
-- - terms is a sorted set by fencing token of 'fencing token:metadata', of the last leases that were granted. The step that
--   grants a lease or changes its metadata writes it, so that no term is missing;
-- - each step that begins, changes or ends a term writes news and deletes it: observers hear the deletion.
local MOST_TERMS, NEWS_TTL = 64, 1000
local terms, news = KEYS[7], KEYS[8]
local terms_are_ours = pcall(redis.call, 'ZCARD', terms)  -- if not, the leases go on without terms
local announced = false
local hold_lease = hold
local drop_lease = drop
local wake_waiter = wake

local function announce()
  redis.call('SET', news, '', 'PX', NEWS_TTL)
  redis.call('DEL', news)
  announced = true
end

-- Writes the term in place of the one with the same fencing token, and keeps all terms as long as the fence, or for `ms`
-- if that is longer.
local function record_term(minted, metadata, ms)
  if not terms_are_ours then return end
  local term = minted .. ':' .. metadata
  if not redis.call('ZSCORE', terms, term) then
    redis.call('ZREMRANGEBYSCORE', terms, minted, minted)
    redis.call('ZADD', terms, minted, term)
    redis.call('ZREMRANGEBYRANK', terms, 0, -MOST_TERMS - 1)
    announce()
  end
  keep(terms, math.max(redis.call('PTTL', fence), ms))
end

local function hold(token, permits, minted, metadata, ttl)
  hold_lease(token, permits, minted, metadata, ttl)
  record_term(minted, metadata, 10 * ttl)
end

local function drop(token)
  drop_lease(token)
  announce()
end

-- The server does not tell a session of its own step: that session finds news among the bells.
local function wake(fair, rank, except)
  local rung = wake_waiter(fair, rank, except)
  if announced then rung[#rung + 1] = news end
  return rung
end
