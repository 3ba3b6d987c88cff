-- A reentrant lock: its owner may take it again.
--
-- KEYS of every step   1 lock   2 fence   3 queue   4 nest   and the bell, of a waiter that will wait or leaves the queue
--
-- Invariants:
-- - the lock key has the owner where that of a simple lock has its token, so that each excludes the other;
-- - the nest is a sorted set of the owner's tokens by their deadlines, ms: the owner holds the lock until the last deadline.
--   A grant of a free lock begins with an empty nest.
local lock, fence, queue, nest, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local OWNER = 32

local function owner_of(token) return string.sub(token, 1, OWNER) end

-- Removes tokens after their deadline. Begins with ZREM, the first write of each step, which a server out of memory allows.
local function purge()
  redis.call('ZREM', nest, '')
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', nest, '-inf', NOW)) do
    if is_token(token) then redis.call('ZREM', nest, token) end
  end
end

-- The deadline of the token if its owner holds the lock with it; else nil or false.
local function deadline_of(token)
  return held_by(owner_of(token), redis.call('GET', lock)) and redis.call('ZSCORE', nest, token)
end

-- The latest deadline of the owner's tokens, without that of `except`, or nil if there is none. Skips entries of other programs.
local function last_deadline(except)
  local rank = -1
  while true do
    local token, deadline = unpack(redis.call('ZRANGE', nest, rank, rank, 'WITHSCORES'))
    if not token or token ~= except and is_token(token) then return deadline end
    rank = rank - 1
  end
end

-- Removes a token. Returns the latest deadline of the others, or nil. It reads that deadline first: while the slot moves, the
-- server stops a script that touches a key after emptying it, and the lock would stay without any token.
local function remove_token(token)
  local others = last_deadline(token)
  redis.call('ZREM', nest, token)
  return others
end

-- Makes the lock and the nest last until the latest deadline.
local function set_ttls()
  local left = math.max(1, last_deadline() - NOW)
  redis.call('PEXPIRE', lock, left)
  redis.call('PEXPIRE', nest, left)
end
