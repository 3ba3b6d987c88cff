-- Permits: semaphores, fair locks, and the runs and terms that are kept as permits.

--# permits
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

--# permits_acquire
-- Takes permits, or says how long the lease that ends first may last.
-- If it is sent again with a token that already holds, it is the same grant with a new ttl.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 permits   6 value, or '' for one that is 1
--       7 seat, of zeros unless it is fair   8 flags: t only in turn, w will wait if refused, p was woken, o its session
--       has released permits and woken no waiter, q has a bell, l deletes it, h is told the holders if refused,
--       b takes a seat only, for others of its session go first   9 retention of the value, ms
-- Returns {1, fencing token, number of entries in the queue, number of further such grants that there is room for, bells rung…}
--      or {0, remaining ms (-1: no holder; -2: others go first; -3: there are too few)[, the holders], bells rung…
--          [, the entry of the queue that goes first, if it is another entry of the same bell]}
--      or {2, first value, current value} when the first value is another one, and somebody holds or waits
--      or {3, current value, bells rung…} when neither value allows that number: the waiter has left the queue
--
-- Invariant: with t, no waiter gets in before a living one with another bell, and a try that will not wait passes no waiter.
local token, ttl, wanted, seat, flags = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5]), ARGV[7], ARGV[8]
local fair, others = seat ~= NO_SEAT, number_in(queue)
if ARGV[6] ~= '' then
  local first, resized = first_value(ARGV[6])
  if first and first ~= ARGV[6] then return {2, tonumber(first), capacity()} end
  if not first then redis.call('HSET', value, 'first', ARGV[6], 'current', resized or ARGV[6]) end
end
local woken, wakeup_due = was_woken(flags, bell), purge() > 0 or has(flags, 'o')
local permits, minted, metadata = lease_of(token)
if not permits then
  local entry, in_turn, too_soon, behind, ahead = bell .. seat, true, wanted > free(), has(flags, 'b'), nil
  if has(flags, 't') then in_turn, ahead = goes_first(queue, bell, entry, has(flags, 'w')) end
  if too_soon or not in_turn or behind then
    keep(value, ARGV[9])  -- also for a waiter: a value that was resized must last
    local too_few = wanted > capacity()
    if too_few and wanted > tonumber(ARGV[6]) then  -- the first value was too small, too
      dequeue(queue, bell, seat, has(flags, 'l'))
      return {3, capacity(), unpack(wake(fair, 0))}
    end
    -- Permits that it cannot use are for other waiters: for those after it if it was woken in the queue, or else for all.
    local rung, rank = {}, redis.call('ZRANK', queue, entry) or -1
    local own = has(flags, 'w') and enqueue(queue, bell, seat, has(flags, 'q')) or nil
    if behind or (not in_turn and not ahead) or (wakeup_due and not fair) then
      rung = wake(fair, 0, entry)
    elseif woken and not fair then
      rung = wake(fair, rank + 1)
    end
    rung[#rung + 1] = own
    if not too_soon then rung[#rung + 1] = ahead end
    local earliest = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
    local remaining = earliest and math.max(0, earliest - NOW) or -1
    if wanted <= free() then remaining = -2 end
    if has(flags, 'h') then table.insert(rung, 1, describe_holders()) end
    if too_few then remaining = -3 end
    return {0, remaining, unpack(rung)}
  end
  permits, minted, metadata = wanted, mint(fence, MICROSECONDS, ARGV[3]), ARGV[4]
end
keep(fence, ARGV[3])
hold(token, permits, minted, metadata, ttl)
keep(value, ARGV[9])
dequeue(queue, bell, seat, has(flags, 'l'))
local rung = wake(fair, 0)
local room = math.floor(math.max(0, free()) / permits)
return {1, minted, others > 0 and redis.call('ZCARD', queue) or 0, room, unpack(rung)}

--# hand_over_permits
-- Before permits_acquire: releases a lease, so that one step also acquires for the next waiter of the same session.
--
-- ARGV  those of permits_acquire, and then the token that is released
-- Returns {-1} when that token does not hold, or its lease has ended: then the step changes nothing
--
-- Invariant: it wakes no waiter. The acquire has the flag o, and wakes one for the permits that it does not take.
do
  local from = table.remove(ARGV)
  local ends = redis.call('ZSCORE', holders, from)
  if not ends or tonumber(ends) <= NOW or not lease_of(from) then return {-1} end
  drop(from)
end

--# permits_renew
-- Sets the ttl of a lease again if the token holds. It never creates a lease.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 retention of the value, ms   5 seat
-- Returns 1 when renewed, 0 when the token does not hold, or the lease that has taken its place
local purged = purge(true)
if purged > 0 then wake(ARGV[5] ~= NO_SEAT, 0) end
local permits, minted, metadata = lease_of(ARGV[1])
if not permits then return thief_of(ARGV[1]) end
hold(ARGV[1], permits, minted, metadata, tonumber(ARGV[2]))
keep(fence, ARGV[3])
keep(value, ARGV[4])
-- Read last: a connection that tracks the key is told of each later change.
return redis.call('ZCARD', holders) > 0 and 1 or 0

--# permits_release
-- Gives the permits back if the token holds them, and leaves the queue; then wakes the next waiter.
-- Until `at least` ms after their grant, they have no holder but are not free. The fence stays for its retention.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 token   2 retention of the fence, ms   3 seat   4 flags: r wakes the next, l leaves the queue with its bell
--       5 at least, ms (absent: free at once)
-- Returns {1 when freed, 0 when the token does not hold, or the lease that has taken its place, bells rung…}
--
-- Invariant: a lease that is kept has no holder: its token is NOBODY and then the token of its last holder. It ends
-- `at least` ms after the grant, whose time is the fencing token; a clock that was set back since does not lengthen that.
local NOBODY = string.rep('0', 32)

purge(true)
local held, minted, metadata = lease_of(ARGV[1])
if held then
  local left = ARGV[5] and math.ceil(math.min(MICROSECONDS, minted) / 1000 + ARGV[5]) - NOW or 0
  if left > 0 then hold(NOBODY .. ARGV[1], held, minted, metadata, left) end
  drop(ARGV[1])  -- after `hold`: while its slot moves, a key that is gone cannot be written again
  if left > 0 and redis.call('ZCARD', holders) == 1 then
    redis.call('PEXPIRE', holders, left + SLACK)
    redis.call('PEXPIRE', leases, left + SLACK)
  end
  keep(fence, ARGV[2])
end
dequeue(queue, bell, ARGV[3], has(ARGV[4], 'l'))
local rung = {}
if has(ARGV[4], 'r') then rung = wake(ARGV[3] ~= NO_SEAT, 0) end
return {held and 1 or thief_of(ARGV[1]), unpack(rung)}

--# permits_owned
-- Tells whether the token holds.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 token
-- Returns 1 or 0
purge(true)
return lease_of(ARGV[1]) and 1 or 0

--# permits_adopt
-- Gives the permits from one token to another, with a new ttl and the new holder's metadata.
-- If it is sent again, it has the same result. The fencing token stays.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 token that holds   2 token that will hold   3 ttl, ms   4 retention of the fence, ms   5 metadata, JSON
-- Returns the fencing token, or '' when neither token holds
--
-- Invariant: of several requests that adopt with one old token, exactly one finds it in place.
purge(true)
local token = lease_of(ARGV[1]) and ARGV[1] or ARGV[2]
local permits, minted = lease_of(token)
if not permits then return '' end
hold(ARGV[2], permits, minted, ARGV[5], tonumber(ARGV[3]))  -- first: the server deletes a key that is empty in between
if token ~= ARGV[2] then drop(token) end
keep(fence, ARGV[4])
return minted

--# permits_annotate
-- Changes the metadata of a lease if the token holds. It never creates a lease; permits, fencing token and deadline stay.
-- If it is sent again, it has the same result.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 token   2 metadata, JSON
-- Returns 1 when changed, 0 when the token does not hold
local deadline = redis.call('ZSCORE', holders, ARGV[1])
local permits, minted = lease_of(ARGV[1])
if not permits or not deadline or tonumber(deadline) <= NOW then return 0 end
redis.call('HSET', leases, ARGV[1], permits .. ':' .. minted .. ':' .. ARGV[2])
return 1

--# permits_available
-- Tells how many permits could be acquired now.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 value, or '' for one that is 1   2 flags: t only in turn
-- Returns their number; 0 with t while there is a waiter
-- or {first value, current value} when the first value is another one, and somebody holds or waits
local first, resized
if ARGV[1] ~= '' then first, resized = first_value(ARGV[1]) end
if first and first ~= ARGV[1] then return {tonumber(first), capacity()} end
purge(true)
if foreign_key then reject_foreign(foreign_key) end
if has(ARGV[2], 't') and first_living(queue, 0) then return 0 end
local available = free()
if not first and ARGV[1] ~= '' then available = available - capacity() + (resized or ARGV[1]) end
return math.max(0, available)

--# permits_resize
-- Sets the current value, 0 or more. With more permits, it wakes the next waiter if a permit is free; with fewer, it wakes
-- all waiters in the first WALK entries: some may want more permits than there are now.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 first value   2 value from now on   3 retention of the value, ms   4 seat
-- Returns {1, 0, bells rung…} or {2, first value, current value} when the first value is another one, and
--      somebody holds or waits
local first = first_value(ARGV[1])
if first and first ~= ARGV[1] then return {2, tonumber(first), capacity()} end
local fewer = tonumber(ARGV[2]) < (first and capacity() or tonumber(ARGV[1]))
redis.call('HSET', value, 'first', ARGV[1], 'current', ARGV[2])
if ARGV[1] == ARGV[2] then redis.call('HDEL', value, 'resized') else redis.call('HSET', value, 'resized', 1) end
keep(value, ARGV[3])
purge(true)
if not fewer then return {1, 0, unpack(wake(ARGV[4] ~= NO_SEAT, 0))} end
local rung = {}
for rank = 0, WALK - 1 do
  local entry, state = first_living(queue, rank)
  if state == '' then
    local bell = bell_of(queue, entry)
    ring(bell)
    rung[#rung + 1] = bell
  end
end
return {1, 0, unpack(rung)}

--# permits_steal
-- Takes the one permit from its holder, before all waiters.
-- If it is sent again with the token that already holds, it is the same grant with a new ttl.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON
-- Returns {1, fencing token, number of entries in the queue, the lease from which it was taken as
--      'token:fencing token:metadata' ('': none), bells rung…}
local token, ttl, lost = ARGV[1], tonumber(ARGV[2]), ''
local others = number_in(queue)
purge()
local permits, minted, metadata = lease_of(token)
if not permits then
  minted, metadata = mint(fence, MICROSECONDS, ARGV[3]), ARGV[4]
  for _, held in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
    local _, old_minted, old_metadata = lease_of(held)
    lost = held .. ':' .. old_minted .. ':' .. old_metadata
    leave_mark(held, token .. ':' .. minted .. ':' .. metadata, redis.call('ZSCORE', holders, held) - NOW)
    drop(held)
  end
end
keep(fence, ARGV[3])
hold(token, 1, minted, metadata, ttl)
return {1, minted, others, lost, unpack(wake(true, 0))}

--# force_permits
-- Frees the permits of all holders that were granted up to a fencing token, and wakes the waiters. Value and fence stay.
--
-- KEYS  1 holders   2 leases   3 queue   4 value   5 fence
--       and of a job   6 owner   7 holders, 8 leases and 9 value of its runs that may go on beside others   10 about
-- ARGV  1 the latest fencing token that it frees   2 the ticket that it frees   3 the mark for the holders
-- Returns {number of leases that it has freed and keys that it has discarded, bells rung…}

-- Frees leases in these keys; returns the number of leases freed and keys discarded.
local function free_leases(holders, leases, value)
  local freed, held, left = discard('zset', holders) + discard('hash', leases, value), 0, redis.call('PTTL', holders)
  for _, token in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
    local permits, minted = string.match(redis.call('HGET', leases, token) or '', '^(%d+):(%d+):')
    if is_due(minted) then
      redis.call('ZREM', holders, token)
      tell(token, minted, left)
      freed = freed + 1
    else
      held = held + permits
    end
  end
  for _, token in ipairs(redis.call('HKEYS', leases)) do
    if not redis.call('ZSCORE', holders, token) then redis.call('HDEL', leases, token) end
  end
  if held > 0 then redis.call('HSET', leases, 'held', held) end
  return freed
end

-- Removes a value in which this field is no number.
local function discard_value(value, field)
  return tonumber(redis.call('HGET', value, field)) and 0 or redis.call('DEL', value)
end

discard_fence(KEYS[5])
local freed = free_leases(KEYS[1], KEYS[2], KEYS[4]) + discard_value(KEYS[4], 'current')
if KEYS[6] then
  freed = freed + free_leases(KEYS[7], KEYS[8], KEYS[9]) + discard_value(KEYS[9], 'current')
  freed = freed + discard('string', KEYS[6]) + discard('hash', KEYS[10])
  if redis.call('GET', KEYS[6]) == ARGV[2] then
    freed = freed + redis.call('DEL', KEYS[6])
    redis.call('HDEL', KEYS[10], ARGV[2])
  end
else
  freed = freed + discard_value(KEYS[4], 'first')
end
return {freed, unpack(wake_first(KEYS[3], 16, true))}

--# mid_move_permits
-- Permits while their slot moves: the token of a holder is in two keys. The step would take a token in only one of them
-- for lost, so both keys must be on this node.
queue, bell = HIDDEN, HIDDEN
if is_here(holders) ~= is_here(leases) then return NOT_HERE end
