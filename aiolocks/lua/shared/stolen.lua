-- The mark of a holder from which the lock was taken by force: it tells that holder which lease has the lock now. Where an
-- operator has freed the lock, that is a lease of nobody (its token is zeros), whose metadata are the operator's.
--
-- Invariant: the mark is a hash from a token that was in the key (the first one, unless another is named) to the lease that
-- took its place, 'token:fencing token:metadata'. It lasts as long as the taken lease could: then its holder asks no more.
-- It has no more than MOST_MARKED of them: the oldest, of the smallest fencing token, goes first.
local MOST_MARKED = 16
local NAME, MARK = '^([^{]*):', '%1.stolen:'

-- The lease that took the place of this token's lease, or 0 if none is known.
local function thief_of(token, key)
  local mark = string.gsub(key or KEYS[1], NAME, MARK)
  local ok, thief = pcall(redis.call, 'HGET', mark, token)
  return ok and thief or 0
end

local function forget_oldest(mark)
  local marks, oldest, least = redis.call('HGETALL', mark), nil, math.huge
  for i = 1, #marks, 2 do
    local minted = tonumber(string.match(marks[i + 1], '^[^:]*:(%d+)')) or 0
    if minted < least then oldest, least = marks[i], minted end
  end
  redis.call('HDEL', mark, oldest)
end

-- Writes the mark. If another program has a value there, that stays, and the holder is not told of the thief.
local function leave_mark(token, thief, ms)
  local mark = string.gsub(KEYS[1], NAME, MARK)
  local ok, marked = pcall(redis.call, 'HLEN', mark)
  if not ok then return end
  if marked >= MOST_MARKED then forget_oldest(mark) end
  redis.call('HSET', mark, token, thief)
  redis.call('PEXPIRE', mark, math.max(ms, redis.call('PTTL', mark), 1))
end
