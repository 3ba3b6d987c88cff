-- Limits: a lease holds one permit of each of its keys, and no key has more permits out than its cap.
--
-- KEYS of every step   1 holders   2 leases   3 turns   4 fence   5 queue of all   6 bell   7 queue of the line
--
-- The waiters for the same keys with the same caps are a line, called 'key=cap,key=cap…', with the smallest cap first.
--
-- Invariant: holders is a sorted set of tokens by deadline, ms; leases a hash from the same tokens to
-- 'line:fencing token:metadata', from '#key' to the number of tokens that hold that key, and from '#' to the number of these
-- fields. A step changes a count only together with a token; where the two keys differ, they are counted again (`lines`).
local SLACK = 1000  -- ms that keys outlast their entries, so that a step finds that these have ended
local MOST_TOLD, NOBODY = 8, string.rep('0', 32)
local CALLED = NOBODY .. NO_SEAT
local holders, leases, turns, fence, everyone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local bell, queue = KEYS[6], KEYS[7]
local value = turns  -- the steps of permits keep the key `value` while there is a holder
local freed, rung = {}, {}  -- in this step: keys of which a permit came back, and bells that were rung
local asking  -- where this step hands over: the bell of the waiter that asks in it

-- Line, fencing token and metadata of a lease, or nil.
local function lease_of(token)
  return string.match(redis.call('HGET', leases, token) or '', '^([^:]+):(%d+):(.*)$')
end

local function each(line) return string.gmatch(line, '([^=,]+)=(%d+)') end

-- The first key of the line that is full, with its cap, or nil.
local function full_key(line)
  for key, cap in each(line) do
    local held = tonumber(redis.call('HGET', leases, '#' .. key) or 0) or reject_foreign(leases)
    if held >= tonumber(cap) then return key .. '=' .. cap end
  end
end

local function count(line, number)
  local keys = 0
  for key in each(line) do
    local held = redis.call('HINCRBY', leases, '#' .. key, number)
    if held <= 0 then redis.call('HDEL', leases, '#' .. key) end
    if held == math.max(0, number) then keys = keys + number end
  end
  if redis.call('HINCRBY', leases, '#', keys) <= 0 then redis.call('HDEL', leases, '#') end
end

local function hold(token, line, minted, metadata, ttl)
  if not lease_of(token) then count(line, 1) end
  redis.call('ZADD', holders, whole(NOW + ttl), token)
  redis.call('HSET', leases, token, line .. ':' .. minted .. ':' .. metadata)
  keep(holders, ttl + SLACK)
  keep(leases, ttl + SLACK)
end

-- Removes a lease; returns its line, or nil.
local function drop(token)
  local line = lease_of(token)
  redis.call('ZREM', holders, token)
  redis.call('HDEL', leases, token)
  if line then
    count(line, -1)
    for key in each(line) do freed[key] = true end
  end
  return line
end

