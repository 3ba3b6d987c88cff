-- Locks that their owners take again: a simple lock, and a set of the owner's tokens.

--# nest
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

--# reentrant_acquire
-- Takes the lock, also once more for its owner, or tells how long its holder may keep it and gives a waiter a seat.
-- Sent again with a token that already holds the lock, it is the same grant with a new ttl.
--
-- KEYS  1 lock   2 fence   3 queue   4 nest   5 bell (only from an asker that will wait)
-- ARGV  1 token, which begins with its owner   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON
--       5 flags: t only in turn, w will wait if refused, q may have a bell, l leaves the queue, h is told of the holder
-- Returns {1, fencing token, number of others in the queue, number of the owner's leases}
--      or {0, remaining ms of the holder (-1: it has no ttl; -2: the lock is free, and another's turn)[, the holder][, its
--      own bell], as lock_acquire tells it}
--
-- Invariant: the fencing token is minted when the lock was free, and stays while the owner has a lease.
local token, ttl, flags = ARGV[1], tonumber(ARGV[2]), ARGV[5]
local held = known(lock, redis.call('GET', lock))
local others = number_in(queue)
local nested_first = redis.call('ZRANGE', nest, 0, 0)[1]
if nested_first and not is_token(nested_first) then reject_foreign(nest) end
if held and not held_by(owner_of(token), held) then
  local reply = {0, redis.call('PTTL', lock)}
  if has(flags, 'h') then reply[3] = {whole(MICROSECONDS), '', '', reply[2], held} end
  if recall(lock, queue, held, flags) and (not has(flags, 'w') or has(flags, 'e')) then
    local before = redis.call('ZRANGE', queue, 0, 0)[1]
    if not before or before == bell then reply[2] = -5 end
  end
  reply[#reply + 1] = enqueue_in_each({queue}, bell, flags)
  return reply
end

local minted
if held then
  minted = minted_in(held)
  purge()
  keep(fence, ARGV[3])
else
  local first = redis.call('ZRANGE', queue, 0, 0)[1]
  if has(flags, 't') and first and first ~= bell then return {0, -2, enqueue_in_each({queue}, bell, flags)} end
  minted = mint(fence, MICROSECONDS, ARGV[3])
  redis.call('SET', lock, owner_of(token) .. ':' .. minted .. ':' .. ARGV[4], 'PX', ttl)
  if nested_first then redis.call('DEL', nest) end
end
redis.call('ZADD', nest, whole(NOW + ttl), token)
set_ttls()
if has(flags, 'l') then
  others = others - redis.call('ZREM', queue, bell)
  redis.call('DEL', bell)
end
return {1, minted, others, redis.call('ZCARD', nest)}

--# hand_over_nest
-- Before reentrant_acquire: the owner releases a token, and the next waiter of its session asks for the lock, in one step.
--
-- ARGV  the arguments of reentrant_acquire, and then the token that is released
-- Returns {-1} when the owner does not hold the lock with that token: then no lease has changed
--
-- Invariant: the lock is free after that only if it was the owner's last token.
do
  local from = table.remove(ARGV)
  purge()
  if not deadline_of(from) then return {-1} end
  keep(fence, ARGV[3])
  if remove_token(from) then set_ttls() else redis.call('DEL', lock) end
end

--# reentrant_renew
-- Sets the ttl again for a token of the owner. Never creates a token that is gone, and shortens no other lease of the
-- owner.
--
-- KEYS  1 lock   2 fence   3 queue   4 nest
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms
-- Returns 1 when renewed, 0 when the token does not hold the lock, or the lease that has taken its owner's place
purge()
if not deadline_of(ARGV[1]) then return thief_of(owner_of(ARGV[1])) end
redis.call('ZADD', nest, whole(NOW + ARGV[2]), ARGV[1])
set_ttls()
keep(fence, ARGV[3])
return redis.call('GET', lock) and 1 or 0  -- read last: a connection that tracks it is told of each later change

--# reentrant_release
-- Removes a token of the owner, frees the lock if it was the last one, and leaves the queue; then, if the lock is free,
-- wakes the next waiter. The fence stays for its retention.
--
-- KEYS  1 lock   2 fence   3 queue   4 nest   5 bell (only from a waiter that leaves the queue with it)
-- ARGV  1 token   2 retention of the fence, ms   3 wake the next ('1')
-- Returns {1 when it was one of the owner's, or else 0, or the lease that has taken the owner's place, bells rung…}
purge()
local freed, free = 0, nil
if deadline_of(ARGV[1]) then
  freed = 1
  keep(fence, ARGV[2])
  free = not remove_token(ARGV[1])
  if free then redis.call('DEL', lock) else set_ttls() end
else
  free = redis.call('EXISTS', lock) == 0
  if not bell then freed = thief_of(owner_of(ARGV[1])) end  -- a waiter that leaves was never its owner
end
if bell then
  redis.call('ZREM', queue, bell)
  redis.call('DEL', bell)
end
if ARGV[3] == '1' and free then return {freed, wake(queue)} end
return {freed}

--# reentrant_owned
-- Tells whether the token is one of the owner's, and the lock belongs to that owner.
--
-- KEYS  1 lock   2 fence   3 queue   4 nest
-- ARGV  1 token
-- Returns 1 or 0
purge()
return deadline_of(ARGV[1]) and 1 or 0

--# reentrant_adopt
-- Gives a lease from one token to another of the same owner, with a new ttl.
-- Sent again after it was done, it is the same success. The fencing token stays.
--
-- KEYS  1 lock   2 fence   3 queue   4 nest
-- ARGV  1 token that holds   2 token that will hold   3 ttl, ms   4 retention of the fence, ms
-- Returns the fencing token, or '' when neither token holds the lock
--
-- Invariant: of several sessions that adopt with one old token, exactly one finds that token in the nest.
purge()
local held = deadline_of(ARGV[1]) or deadline_of(ARGV[2])
if not held then return '' end
redis.call('ZADD', nest, whole(NOW + ARGV[3]), ARGV[2])  -- first: a nest that is empty in between would be gone
redis.call('ZREM', nest, ARGV[1])
set_ttls()
keep(fence, ARGV[4])
return minted_in(redis.call('GET', lock))

--# reentrant_annotate
-- Changes the metadata of the lock, which all leases of its owner share, if the token is one of the owner's. Never
-- creates a lock that is gone; ttl and fencing token stay. Sent again, it does the same.
--
-- KEYS  1 lock   2 fence   3 queue   4 nest
-- ARGV  1 token   2 metadata, JSON
-- Returns 1 when changed, 0 when the token does not hold the lock
local deadline = deadline_of(ARGV[1])
if not deadline or tonumber(deadline) <= NOW then return 0 end
local minted = minted_in(redis.call('GET', lock))
redis.call('SET', lock, owner_of(ARGV[1]) .. ':' .. minted .. ':' .. ARGV[2], 'KEEPTTL')
return 1

--# reentrant_locked
-- Tells whether a try of that owner now would be refused.
--
-- KEYS  1 lock
-- ARGV  1 owner
-- Returns 1 or 0
local held = redis.call('GET', KEYS[1])
return held and not held_by(ARGV[1], held) and 1 or 0

--# reentrant_steal
-- Takes the lock from another holder, before all waiters; from its owner, it takes it once more.
-- Sent again with a token that already holds the lock, it is the same grant with a new ttl.
--
-- KEYS  1 lock   2 fence   3 queue   4 nest
-- ARGV  1 token, which begins with its owner   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON
-- Returns {1, fencing token, number of waiters in the queue, the former value of the lock key ('': none, or its owner's),
--      number of the owner's leases}
local token, ttl = ARGV[1], tonumber(ARGV[2])
local held, others = known(lock, redis.call('GET', lock)), number_in(queue)
local minted, lost = held and minted_in(held), ''
if held_by(owner_of(token), held) then
  purge()
  keep(fence, ARGV[3])
else
  local left = redis.call('PTTL', lock)
  minted = mint(fence, MICROSECONDS, ARGV[3])
  local taken = owner_of(token) .. ':' .. minted .. ':' .. ARGV[4]
  if held then leave_mark(string.match(held, '^%x+'), taken, left) end
  lost = held or ''
  redis.call('DEL', lock, nest)
  redis.call('SET', lock, taken, 'PX', ttl)
end
redis.call('ZADD', nest, whole(NOW + ttl), token)
set_ttls()
return {1, minted, others, lost, redis.call('ZCARD', nest)}

--# mid_move_nest
-- A reentrant lock while its slot moves: its owner needs the lock key and the nest.
queue, bell = HIDDEN, nil
if held_by(owner_of(ARGV[1]), redis.call('GET', lock)) and not is_here(nest) then return NOT_HERE end
