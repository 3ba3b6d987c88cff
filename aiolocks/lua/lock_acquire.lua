-- Takes the lock, or tells how long its holder may keep it; a refused asker that will wait then gets a seat.
-- Sent again with the token that already holds the lock, it is the same grant with a new ttl.
--
-- KEYS  1 lock   2 fence   3 queue   4 bell (only from an asker that will wait)
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 flags: t only in turn, w will wait if
--       refused, q has asked before and may have a bell, l leaves the queue, h is told of the holder, if refused
-- Returns {1, fencing token, number of others in the queue}
--      or {0, remaining ms of the holder (-1: it has no ttl; -2: the lock is free, and another's turn)[, the holder][, its
--          own bell, if that was gone]}; the holder: {the server's time, microseconds; ''; '', remaining ms, the lock key}
--
-- Invariants: the lock key is 'token:fencing token:metadata', always with a ttl; the fence is at least every fencing
-- token that was granted under this name while it was kept; when a refusal is written, its waiter has a seat, and its bell
-- hangs. A bell that hangs is not written again: after its own write, a session would not be told that the bell is rung.
local lock, fence, queue, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, ttl, retention, flags, BELL_TTL, QUEUE_TTL = ARGV[1], ARGV[2], ARGV[3], ARGV[5], 2000, 10000
local FIRST_ASK = 'wh'  -- with these flags there is no other to look for; nor are functions made that a grant needs not

-- A value without the form that aiolocks gives it was written by another program: the error is 'FOREIGN' and the key's number.
local held = redis.call('GET', lock)
local others = redis.call('ZCARD', queue)  -- read before anything is written
local first = others > 0 and redis.call('ZRANGE', queue, 0, 0)[1]
if first and not string.find(first, '.bell.', 1, true) then return redis.error_reply('FOREIGN 3') end
local mine = held and string.sub(held, 1, #token + 1) == token .. ':'
if held and not mine then
  local holder = string.match(held, '^(%x+):%d+:')
  if not holder or #holder % 32 ~= 0 then return redis.error_reply('FOREIGN 1') end
end
if held and not mine or not held and first and first ~= bell and string.find(flags, 't', 1, true) then
  local function has(flag) return string.find(flags, flag, 1, true) end
  -- Microseconds since 1970 are below 2^53 until 2255, and so exact in a double; only %.0f prints them in full.
  local function now() local time = redis.call('TIME') return time[1] * 1000000 + time[2] end
  local function whole(number) return string.format('%.0f', number) end
  local reply = {0, held and redis.call('PTTL', lock) or -2}
  if held and has('h') then reply[3] = {whole(now()), '', '', reply[2], held} end
  if not has('w') then return reply end
  local hangs = redis.call('GET', bell) == ''
  redis.pcall('PEXPIRE', queue, QUEUE_TTL)  -- allowed out of memory; then so are later writes
  -- After all that wait, also if the clock was set back since they came.
  local arrival = math.max(now(), (redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0) + 1)
  redis.pcall('ZADD', queue, 'NX', whole(arrival), bell)
  redis.pcall('PEXPIRE', queue, QUEUE_TTL)
  if not hangs then redis.pcall('SET', bell, '', 'PX', BELL_TTL) end
  if not hangs and has('q') then reply[#reply + 1] = bell end
  return reply
end
local minted = held and string.match(held, ':(%d+):')
if mine then
  redis.call('PEXPIRE', lock, ttl)
  redis.call('PEXPIRE', fence, retention)
else
  -- A fencing token is at least the server's time, so that after a lost fence (restart, eviction) none begins again at 1.
  local last = redis.call('GET', fence) or '0'  -- nothing beyond 2^53 was ever granted
  if not string.find(last, '^%d+$') or tonumber(last) >= 9007199254740991 then return redis.error_reply('FOREIGN 2') end
  local time = redis.call('TIME')
  minted = string.format('%.0f', math.max(time[1] * 1000000 + time[2], last + 1))
  redis.call('SET', lock, token .. ':' .. minted .. ':' .. ARGV[4], 'PX', ttl)
  redis.call('SET', fence, minted, 'PX', retention)
end
if flags ~= FIRST_ASK and string.find(flags, 'l', 1, true) then
  others = others - redis.call('ZREM', queue, bell)
  redis.call('DEL', bell)
end
return {1, minted, others}
