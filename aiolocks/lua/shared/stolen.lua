-- The mark of a holder from whom the lock was taken: it tells that holder of the one that has it now.
--
-- Invariant: the mark is a hash from a token that stood in the key (the first, unless another is named) to the lease that
-- took its place, 'token:fencing token:metadata'. It lasts for as long as the taken lease could have lasted: after that, its holder asks no more.
local MOST_MARKED = 16
local NAME, MARK = '^([^{]*):', '%1.stolen:'

-- The lease that took the place of this token's, or 0 where none is known.
local function thief_of(token, key)
  local mark = string.gsub(key or KEYS[1], NAME, MARK)
  local well, thief = pcall(redis.call, 'HGET', mark, token)
  return well and thief or 0
end

-- A value that another program has written there is left alone: then the holder is not told by whom.
local function leave_mark(token, thief, ms)
  local mark = string.gsub(KEYS[1], NAME, MARK)
  local well, marked = pcall(redis.call, 'HLEN', mark)
  if not well then return end
  if marked >= MOST_MARKED then redis.call('DEL', mark) end
  redis.call('HSET', mark, token, thief)
  redis.call('PEXPIRE', mark, math.max(ms, redis.call('PTTL', mark), 1))
end
