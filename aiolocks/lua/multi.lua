-- Several simple locks at once.

--# multi_acquire
-- Takes all the locks, or tells how long another holder may keep one of them; a refused asker that will wait gets a seat.
-- Sent again with the token that already holds them, it is the same grant with a new ttl.
--
-- KEYS  n locks   n fences   n queues   and the bell, from an asker that will wait
-- ARGV  1 n   2 token   3 ttl, ms   4 retention of the fences, ms   5 metadata, JSON
--       6 flags: t in turn, w will wait, b takes a seat only, p passes the wakeup on, o owes one, q has a bell, l leaves, h told
-- Returns {1, fencing token, number of others in the queues, 0}
--      or {0, remaining ms (-1: one has no ttl; -2: they are free, and another's turn)[, the holders], bells rung…}; these:
--      {the server's time, µs; number of the first lock without a ttl, or ''; of the first held each: '', ms left, lock key}
--
-- Invariant: it takes all or none. The fencing token is larger than the value of each fence.
local n, token, ttl, retention, flags = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[6]
local bell, queues, MOST_TOLD = KEYS[3 * n + 1], {}, 26  -- two, and three of each of eight locks
local mine, others, remaining, free, told = 0, 0, nil, {}, {whole(MICROSECONDS), ''}
local minted, asked = MICROSECONDS, true  -- asked: all who hold one were, and have not answered yet
for i = 1, n do
  queues[i] = KEYS[2 * n + i]
  local held = redis.call('GET', KEYS[i])
  if held_by(token, held) then
    mine = mine + 1
  elseif known(KEYS[i], held) then
    local left = redis.call('PTTL', KEYS[i])
    asked = recall(KEYS[i], queues[i], held, flags) and asked
    remaining, told[2] = math.max(remaining or -1, left), left < 0 and told[2] == '' and i or told[2]
    if #told < MOST_TOLD then told[#told + 1], told[#told + 2], told[#told + 3] = '', left, held end
  else
    free[#free + 1] = queues[i]
  end
  others = others + number_in(queues[i])
end

if remaining then
  -- The answer is worth to be waited for by a single try before which nobody waits.
  local answers = asked and (not has(flags, 'w') or has(flags, 'e'))
  for i = 1, answers and n or 0 do
    local before = redis.call('ZRANGE', queues[i], 0, 0)[1]
    if before and before ~= bell then answers = false end
  end
  -- A waiter that was woken for one of them and lacks another passes the wakeup on, once; also one that does not know of it.
  local rung = {}
  if has(flags, 'p') or has(flags, 'q') and redis.call('EXISTS', bell) == 0 then
    pass_wakeup_on(free, bell, rung, has(flags, 'q') and not has(flags, 'o'))
  end
  rung[#rung + 1] = enqueue_in_each(queues, bell, flags)
  if has(flags, 'h') then table.insert(rung, 1, told) end
  return {0, answers and -5 or told[2] == '' and remaining or -1, unpack(rung)}
end
if has(flags, 'b') then return {0, -2, enqueue_in_each(queues, bell, flags)} end
if mine == n then
  minted = minted_in(redis.call('GET', KEYS[1]))
  redis.call('PEXPIRE', KEYS[1], ttl)  -- allowed out of memory; then so are later writes
else
  for i = 1, n do
    local first = redis.call('ZRANGE', queues[i], 0, 0)[1]
    if has(flags, 't') and first and first ~= bell then return {0, -2, enqueue_in_each(queues, bell, flags)} end
    minted = above(KEYS[n + i], minted)
  end
  minted = whole(minted)
end

for i = 1, n do
  redis.call('SET', KEYS[i], token .. ':' .. minted .. ':' .. ARGV[5], 'PX', ttl)
  redis.call('SET', KEYS[n + i], minted, 'PX', retention)
  if has(flags, 'l') then others = others - redis.call('ZREM', queues[i], bell) end
end
if has(flags, 'l') then redis.call('DEL', bell) end
return {1, minted, others, 0}

--# hand_over_locks
-- Before multi_acquire: the holder releases the locks, and the next waiter of its session takes all of them, in one step.
--
-- ARGV  the arguments of multi_acquire, and then the token of the holder
-- Returns {-1} when that token does not hold all the locks: then nothing was done
--
-- Invariant: it releases all of them or none. Where the holder has lost some, only multi_release frees the others.
do
  local from, n = table.remove(ARGV), tonumber(ARGV[1])
  for i = 1, n do
    if not held_by(from, redis.call('GET', KEYS[i])) then return {-1} end
  end
  for i = 1, n do
    redis.call('PEXPIRE', KEYS[n + i], ARGV[4])
    redis.call('DEL', KEYS[i])
  end
end

--# multi_renew
-- Sets the ttl again for the token that holds all the locks. Never creates a lock that is gone.
--
-- KEYS  n locks   n fences
-- ARGV  1 n   2 token   3 ttl, ms   4 retention of the fences, ms
-- Returns 1 when renewed, 0 when the token does not hold all of them, or the lease that has taken its place
--
-- Invariants:
-- - writes with PEXPIRE alone, so that it works on a server that is out of memory;
-- - reads all the locks at once, where an ACL allows that: up to Redis 7.0, a server that tracks the script remembers all its
--   keys at each read in it, and with a read for each of a thousand locks it took 0.2 s.
local n = tonumber(ARGV[1])
local ok, held = pcall(redis.call, 'MGET', unpack(KEYS, 1, n))
for i = 1, n do
  if not held_by(ARGV[2], ok and held[i] or redis.call('GET', KEYS[i])) then return thief_of(ARGV[2], KEYS[i]) end
end
for i = 1, n do
  redis.call('PEXPIRE', KEYS[i], ARGV[3])
  redis.call('PEXPIRE', KEYS[n + i], ARGV[4])
end
-- Read last: a connection that tracks them is told of each later change.
return redis.call('EXISTS', unpack(KEYS, 1, n)) == n and 1 or 0

--# multi_release
-- Frees the locks that the token holds, and leaves the queues; then wakes the next waiter of each free lock.
-- The fences stay for their retention.
--
-- KEYS  n locks   n fences   n queues   and the bell, from a waiter that leaves the queues with it
-- ARGV  1 n   2 token   3 retention of the fences, ms   4 wake the next ('1')
-- Returns {1 when the token held all of them, or else 0, or the lease that has taken its place, bells rung…}
--
-- Invariant: writes with DEL, ZREM and PEXPIRE alone, so that it works on a server that is out of memory.
local n, bell = tonumber(ARGV[1]), KEYS[3 * tonumber(ARGV[1]) + 1]
local freed, thief, rung = 0, 0, {}
if bell then redis.call('DEL', bell) end
for i = 1, n do
  local held = redis.call('GET', KEYS[i])
  if held_by(ARGV[2], held) then
    redis.call('DEL', KEYS[i])
    redis.call('PEXPIRE', KEYS[n + i], ARGV[3])
    freed, held = freed + 1, nil
  elseif thief == 0 and not bell then  -- a waiter that leaves was never their holder
    thief = thief_of(ARGV[2], KEYS[i])
  end
  if bell then redis.call('ZREM', KEYS[2 * n + i], bell) end
  if not held and ARGV[4] == '1' then rung[#rung + 1] = wake(KEYS[2 * n + i]) end
end
return {freed == n and 1 or thief, unpack(rung)}

--# multi_owned
-- Tells whether the token holds all the locks.
--
-- KEYS  locks
-- ARGV  1 token
-- Returns 1 or 0
local ok, held = pcall(redis.call, 'MGET', unpack(KEYS))  -- at once, as in multi_renew
for i = 1, #KEYS do
  if not held_by(ARGV[1], ok and held[i] or redis.call('GET', KEYS[i])) then return 0 end
end
return 1

--# multi_adopt
-- Gives all the locks from one token to another, with a new ttl and the new holder's metadata.
-- Sent again after it was done, it is the same success. The fencing token stays.
--
-- KEYS  n locks   n fences
-- ARGV  1 n   2 token that holds   3 token that will hold   4 ttl, ms   5 retention of the fences, ms   6 metadata, JSON
-- Returns the fencing token, or '' when neither token holds all of them
--
-- Invariant: of several sessions that adopt with one old token, exactly one finds that token in the lock keys.
local n, minted = tonumber(ARGV[1]), ''
for i = 1, n do
  local held = redis.call('GET', KEYS[i])
  if not held_by(ARGV[2], held) and not held_by(ARGV[3], held) then return '' end
  minted = minted_in(held)
end
for i = 1, n do
  redis.call('PEXPIRE', KEYS[n + i], ARGV[5])
  redis.call('SET', KEYS[i], ARGV[3] .. ':' .. minted .. ':' .. ARGV[6], 'PX', ARGV[4])
end
return minted

--# multi_annotate
-- Changes the metadata of all the locks if the token holds all of them. Never creates a lock that is gone; ttls and fencing
-- tokens stay. Sent again, it does the same.
--
-- KEYS  locks
-- ARGV  1 token   2 metadata, JSON
-- Returns 1 when changed, 0 when the token does not hold all of them: then nothing was done
local held = {}
for i = 1, #KEYS do
  held[i] = held_by(ARGV[1], redis.call('GET', KEYS[i]))
  if not held[i] then return 0 end
end
for i = 1, #KEYS do
  redis.call('SET', KEYS[i], ARGV[1] .. ':' .. minted_in(held[i]) .. ':' .. ARGV[2], 'KEEPTTL')
end
return 1

--# multi_locked
-- Tells whether a try now would be refused.
--
-- KEYS  locks
-- Returns 1 or 0
return redis.call('EXISTS', unpack(KEYS)) > 0 and 1 or 0

--# multi_return
-- Gives back the locks of this slot that the token has taken before another slot refused it. Wakes the next waiter after its
-- own for each free lock: that waiter may have been refused meanwhile. Its own seats in the queues stay.
--
-- KEYS  n locks   n fences   n queues   and the bell that its entries in the queues name
-- ARGV  1 n   2 token   3 retention of the fences, ms
-- Returns {1 when the token held all of them, or else 0, bells rung…}
--
-- Invariants:
-- - it wakes only later waiters: a chain of wakeups comes to an end, because all queues have the same order;
-- - writes with DEL, ZREM and PEXPIRE alone, so that it works on a server that is out of memory.
local n, bell = tonumber(ARGV[1]), KEYS[3 * tonumber(ARGV[1]) + 1]
local freed, rung = 0, {}
for i = 1, n do
  local held = redis.call('GET', KEYS[i])
  if held_by(ARGV[2], held) then
    redis.call('DEL', KEYS[i])
    redis.call('PEXPIRE', KEYS[n + i], ARGV[3])
    freed, held = freed + 1, nil
  end
  if not held then rung[#rung + 1] = wake(KEYS[2 * n + i], bell) end
end
return {freed == n and 1 or 0, unpack(rung)}

--# multi_seal
-- Writes one fencing token to all the locks of this slot that the token holds, and leaves the queues. It is the last step
-- to take locks of several slots, each of which has minted a fencing token of its own.
-- Sent again after it was done, it is the same success.
--
-- KEYS  n locks   n fences   n queues   and the bell, from a waiter that has entries in the queues
-- ARGV  1 n   2 token   3 fencing token, the largest of all slots'   4 retention of the fences, ms
-- Returns the number of others in the queues, or -1 when the token does not hold all of them: then nothing was done
--
-- Invariant: while the token holds a lock, no other holder mints a fencing token for it: its fence is not above the fencing
-- token that is written here, and the next holder gets a larger one.
local n, token, minted = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local bell = KEYS[3 * n + 1]

local held = {}
for i = 1, n do
  held[i] = held_by(token, redis.call('GET', KEYS[i]))
  if not held[i] then return -1 end
end

local others = 0
for i = 1, n do
  local metadata = string.match(held[i], ':%d+(:.*)$')
  redis.call('SET', KEYS[i], token .. ':' .. minted .. metadata, 'KEEPTTL')
  redis.call('SET', KEYS[n + i], minted, 'PX', ARGV[4])
  if bell then redis.call('ZREM', KEYS[2 * n + i], bell) end
  others = others + redis.call('ZCARD', KEYS[2 * n + i])
end
if bell then redis.call('DEL', bell) end
return others

--# mid_move_multi
-- Several locks while their slot moves: the holder needs all the lock keys, which must be on one node.
local number = #ARGV[1] < 32 and tonumber(ARGV[1]) or #KEYS  -- with a token first, all keys are locks
local here = 0
for i = 1, number do here = here + redis.call('EXISTS', KEYS[i]) end
if here > 0 and here < number then return NOT_HERE end
for i = 2 * number + 1, #KEYS do KEYS[i] = HIDDEN end
