-- Permits: so many may hold at once.
--
-- KEYS of every step   1 holders   2 leases   3 value   4 fence   5 queue   6 bell
--
-- Invariants:
-- - holders is a sorted set by deadline, ms, with one member for each permit, 'token:number': a set of tokens, so that
--   nothing is counted twice; how many are held is how many members it has once what expired was removed;
-- - leases is a hash from token to 'permits:fencing token:metadata', of the same tokens;
-- - value holds the value that it was first made with and the current one; without it, there is one permit.
local SLACK = 1000  -- ms that keys outlast what stands in them, so that it is found to have come to its end
local holders, leases, value, fence, queue, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

-- Removes the leases that have come to their end. The first write of each step: a server out of memory allows it.
local function purge()
  local over = redis.call('ZRANGEBYSCORE', holders, '-inf', NOW)
  redis.call('ZREMRANGEBYSCORE', holders, '-inf', NOW)
  for _, member in ipairs(over) do redis.call('HDEL', leases, string.match(member, '^%x+')) end
  return #over
end

local function capacity() return tonumber(redis.call('HGET', value, 'current') or 1) end

local function free() return capacity() - redis.call('ZCARD', holders) end

-- Permits, fencing token and metadata of a lease that is held, or nil.
local function lease_of(token)
  local lease = redis.call('HGET', leases, token)
  if not lease or not redis.call('ZSCORE', holders, token .. ':1') then return nil end
  local permits, minted, metadata = string.match(lease, '^(%d+):(%d+):(.*)$')
  return tonumber(permits), minted, metadata
end

local function hold(token, permits, ttl)
  for number = 1, permits do
    redis.call('ZADD', holders, whole(NOW + ttl), token .. ':' .. number)
  end
  keep(holders, ttl + SLACK)
  keep(leases, ttl + SLACK)
end

local function drop(token, permits)
  for number = 1, permits do redis.call('ZREM', holders, token .. ':' .. number) end
  redis.call('HDEL', leases, token)
end

-- Wakes who is next, if there is a permit: the first in the queue, or the first behind `entry`. Returns the bells.
local function wake(entry)
  if free() < 1 then return {} end
  local first, state = first_in(queue)
  local rank = entry and redis.call('ZRANK', queue, entry)
  while rank do
    rank = rank + 1
    first = redis.call('ZRANGE', queue, rank, rank)[1]
    state = first and redis.call('GET', bell_of(first))
    if not first or state then break end
    redis.call('ZREM', queue, first)
    rank = rank - 1
  end
  if not first or state ~= '' then return {} end
  ring(bell_of(first))
  return {bell_of(first)}
end
