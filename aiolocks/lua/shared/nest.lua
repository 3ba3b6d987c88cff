-- A lock that its owner may take again.
--
-- KEYS of every step   1 lock   2 fence   3 queue   4 nest   and the bell, from one that will wait or leaves the queue
--
-- Invariants:
-- - the lock key names the owner, where that of a simple lock has its token, so that each excludes the other;
-- - the nest is a sorted set of the owner's tokens by their deadlines, ms: the lock is the owner's while one of them
--   lasts, and ends with the last. It is made again with each lock that is taken.
local lock, fence, queue, nest, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local OWNER = 32

local function owner_of(token) return string.sub(token, 1, OWNER) end

-- Removes what has come to its end. The first write of each step, which a server out of memory allows.
local function purge()
  redis.call('ZREM', nest, '')
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', nest, '-inf', NOW)) do
    if is_token(token) then redis.call('ZREM', nest, token) end
  end
end

-- Whether the lock is the owner's, and the token is one of the owner's that lasts.
local function nested(token)
  return held_by(owner_of(token), redis.call('GET', lock)) and redis.call('ZSCORE', nest, token)
end

-- The latest of its deadlines, but for that of one token, or nil where there is none. Entries of other programs have none.
local function latest(but)
  local rank = -1
  while true do
    local token, deadline = unpack(redis.call('ZRANGE', nest, rank, rank, 'WITHSCORES'))
    if not token or token ~= but and is_token(token) then return deadline end
    rank = rank - 1
  end
end

-- Takes a token out; whether another one of its owner lasts. It looks before that: where the slot moves, a script is stopped
-- as it touches a key that it has emptied, and the lock would stay without any token.
local function take_out(token)
  local others = latest(token)
  redis.call('ZREM', nest, token)
  return others
end

-- The lock lasts until the latest of its deadlines.
local function last_to_the_end()
  local left = math.max(1, latest() - NOW)
  redis.call('PEXPIRE', lock, left)
  redis.call('PEXPIRE', nest, left)
end
