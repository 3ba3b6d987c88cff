-- Leaderships: a fair lock whose leases are written down as terms.

--# terms
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

--# leadership_annotate
-- Changes the metadata of a lease and of its term if the token holds. It never creates a lease; permits, fencing token and
-- deadline stay. If it is sent again, it has the same result.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell   7 terms   8 news
-- ARGV  1 token   2 metadata, JSON
-- Returns 1 when changed, 0 when the token does not hold
local deadline = redis.call('ZSCORE', holders, ARGV[1])
local permits, minted = lease_of(ARGV[1])
if not permits or not deadline or tonumber(deadline) <= NOW then return 0 end
redis.call('HSET', leases, ARGV[1], permits .. ':' .. minted .. ':' .. ARGV[2])
record_term(minted, ARGV[2], deadline - NOW)
return 1

--# leadership_look
-- Tells the leader, and the terms that began after a known one. It writes nothing.
--
-- KEYS  1 holders   2 leases   3 terms
-- ARGV  1 fencing token of the last term that is known; '+inf' for none
-- Returns {the server's time in microseconds, fencing token of the newest term ('0': there is none),
--          ms left of the leader's lease (-1: no leader), that lease 'permits:fencing token:metadata',
--          each later term 'fencing token:metadata'…}
local holders, leases, terms = KEYS[1], KEYS[2], KEYS[3]
local newest = redis.call('ZRANGE', terms, -1, -1)[1]
if newest and not string.find(newest, '^%d+:') then reject_foreign(terms) end
local last = redis.call('ZRANGE', holders, -1, -1, 'WITHSCORES')
local left, lease = last[2] and last[2] - NOW or 0, last[1] and redis.call('HGET', leases, last[1])
if left <= 0 or not lease then left, lease = -1, '' end
local since = redis.call('ZRANGEBYSCORE', terms, '(' .. ARGV[1], '+inf')
return {whole(MICROSECONDS), newest and string.match(newest, '^%d+') or '0', left, lease, unpack(since)}

--# mid_move_terms
-- The terms of a leadership while their slot moves: its leases are permits. A later renewal writes the term.
queue, bell, terms, news = HIDDEN, HIDDEN, HIDDEN, HIDDEN
if is_here(holders) ~= is_here(leases) then return NOT_HERE end
