-- Permits: a number of leases may hold at once.
--
-- KEYS of every step   1 holders   2 leases   3 value   4 fence   5 queue   6 bell
--
-- Invariants:
-- - holders is a sorted set of tokens by deadline, ms; leases a hash from the same tokens to 'permits:fencing
--   token:metadata', and from 'held' to the sum of their permits. A step changes the sum only together with a token, so
--   that no permit is counted twice; where the two keys differ, the permits are counted again;
-- - value has the number of permits with which the name is used, the current one, and whether resizing made that another one;
--   without it, there is one permit. While somebody holds or waits, no step puts another first number there.
local SLACK = 1000  -- ms that keys outlast their entries, so that a step finds that these have ended
local MOST_TOLD = 8
local holders, leases, value, fence, queue, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

-- Permits, fencing token and metadata of a lease, or nil.
local function lease_of(token)
  local lease = redis.call('HGET', leases, token)
  if not lease then return nil end
  local permits, minted, metadata = string.match(lease, '^(%d+):(%d+):(.*)$')
  return tonumber(permits), minted, metadata
end

local function drop(token)
  local permits = lease_of(token) or 0
  redis.call('ZREM', holders, token)
  redis.call('HDEL', leases, token)
  if redis.call('HINCRBY', leases, 'held', -permits) <= 0 then redis.call('HDEL', leases, 'held') end
end

-- For two keys that differ. Either one of them was lost: a token that is only in the other one holds nothing. Or another
-- program has written there: its members stay.
local foreign_key
local function recount()
  local held = 0
  for _, token in ipairs(redis.call('HKEYS', leases)) do
    if token ~= 'held' and not is_token(token) then
      foreign_key = leases
    elseif redis.call('ZSCORE', holders, token) then
      held = held + (lease_of(token) or 0)
    else
      redis.call('HDEL', leases, token)
    end
  end
  for _, token in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
    if not is_token(token) then
      foreign_key = holders
    elseif redis.call('HEXISTS', leases, token) == 0 then
      redis.call('ZREM', holders, token)
    end
  end
  if held > 0 then redis.call('HSET', leases, 'held', held) end
end

-- Removes the leases that have ended; returns their number. `at_once`: a server that is out of memory must not refuse the
-- step. Its first write is a ZREM, which such a server allows, and then also all later ones. A foreign member ends any
-- other step, but not this one: a lease is renewed and ends as if it were alone there.
local function purge(at_once)
  if at_once then redis.call('ZREM', holders, '') end
  local ended = redis.call('ZRANGEBYSCORE', holders, '-inf', NOW)
  for _, token in ipairs(ended) do
    if is_token(token) then drop(token) end
  end
  local number = redis.call('ZCARD', holders)
  if redis.call('HLEN', leases) ~= (number > 0 and number + 1 or 0) then recount() end
  if foreign_key and not at_once then reject_foreign(foreign_key) end
  return #ended
end

local function capacity() return tonumber(redis.call('HGET', value, 'current') or 1) or reject_foreign(value) end

-- The number of permits with which the name was first used, or false before that. Where nobody holds or waits, another number
-- may take its place: then false, too, and the number to which it was resized, which stays, or nil.
local function first_value(asked)
  local first = redis.call('HGET', value, 'first')
  if first and not tonumber(first) or not first and redis.call('HLEN', value) > 0 then reject_foreign(value) end
  if not first or first == asked then return first end
  local last = redis.call('ZRANGE', holders, -1, -1, 'WITHSCORES')[2]
  if last and tonumber(last) > NOW or first_living(queue, 0) then return first end
  local current = capacity()  -- an earlier version has resized without a word
  return false, (current ~= tonumber(first) or redis.call('HGET', value, 'resized')) and current or nil
end

local function free()
  return capacity() - (tonumber(redis.call('HGET', leases, 'held') or 0) or reject_foreign(leases))
end

-- The holders, for a refusal: the server's time, microseconds; the number of permits; and, for each of the leases that
-- end first, its token, the ms left, and the lease.
local function describe_holders()
  local found = {whole(MICROSECONDS), capacity()}
  local ending = redis.call('ZRANGE', holders, 0, MOST_TOLD - 1, 'WITHSCORES')
  for i = 1, #ending, 2 do
    local left, lease = math.max(0, ending[i + 1] - NOW), redis.call('HGET', leases, ending[i])
    found[#found + 1], found[#found + 2], found[#found + 3] = ending[i], left, lease
  end
  return found
end

local function hold(token, permits, minted, metadata, ttl)
  local had = lease_of(token) or 0
  redis.call('ZADD', holders, whole(NOW + ttl), token)
  redis.call('HSET', leases, token, permits .. ':' .. minted .. ':' .. metadata)
  redis.call('HINCRBY', leases, 'held', permits - had)
  keep(holders, ttl + SLACK)
  keep(leases, ttl + SLACK)
end

-- Wakes the next waiter from this rank on, if a permit is free: if `fair`, the first one or none, else the first one with
-- a bell that hangs. The entry `except` is not woken: it has just found too few permits. Returns the rung bells.
local function wake(fair, rank, except)
  if free() < 1 then return {} end
  local last = rank + WALK
  while rank < last do
    local entry, state = first_living(queue, rank)
    if not entry then break end
    if state == '' and entry ~= except then
      local bell = bell_of(queue, entry)
      ring(bell)
      return {bell}
    end
    if fair then break end
    rank = rank + 1
  end
  return {}
end
