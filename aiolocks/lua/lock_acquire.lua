-- Takes the lock, or says how long its holder may keep it.
-- Sent again with the token that already holds it, it is the same grant with its ttl set anew.
--
-- KEYS  1 lock   2 fence   3 queue   4 bell (only from who stands in the queue with it)
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 only in turn ('1')
--       6 is told who holds it, if refused ('1')   7 stays in the queue for now ('1'): it asks other servers, too
-- Returns {1, fencing token, how many others stand in the queue}
--      or {0, remaining ms of the holder (-1: it has no ttl; -2: it is free, and another's turn)[, who holds it]}:
--      {the server's time, microseconds; ''; '', remaining ms, what stands in the lock key}
--
-- Invariants: the lock key is 'token:fencing token:metadata', always with a ttl; the fence is at
-- least every fencing token that was granted under this name while it was kept; who gets in leaves the queue, unless
-- it stays for now: its bell then hangs as before, so that it hears nothing of its own vote.
local lock, fence, queue, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, ttl, retention = ARGV[1], ARGV[2], ARGV[3]
-- Microseconds since 1970 are exact in a double, that is below 2^53, until 2255; only %.0f prints them in full.
local function now() local time = redis.call('TIME') return time[1] * 1000000 + time[2] end
local function whole(number) return string.format('%.0f', number) end

-- What has not the form that aiolocks gives it was written by somebody else: 'FOREIGN' and the number of the key.
local held = redis.call('GET', lock)
local others = redis.call('ZCARD', queue)  -- read before anything is written: what is refused has done nothing
if others > 0 and not string.find(redis.call('ZRANGE', queue, 0, 0)[1], '.bell.', 1, true) then
  return redis.error_reply('FOREIGN 3')
end
local minted
if held then
  if string.sub(held, 1, #token + 1) ~= token .. ':' then
    local of = string.match(held, '^(%x+):%d+:')
    if not of or #of % 32 ~= 0 then return redis.error_reply('FOREIGN 1') end
    local left = redis.call('PTTL', lock)
    if ARGV[6] ~= '1' then return {0, left} end
    return {0, left, {whole(now()), '', '', left, held}}
  end
  minted = string.match(held, ':(%d+):')
  redis.call('PEXPIRE', lock, ttl)
  redis.call('PEXPIRE', fence, retention)
else
  if ARGV[5] == '1' then
    local first = redis.call('ZRANGE', queue, 0, 0)[1]
    if first and first ~= bell then return {0, -2} end
  end
  -- The server's clock is the floor, so that a lost fence (restart, eviction) does not begin again at 1.
  -- Nothing beyond 2^53 was ever granted.
  local last = redis.call('GET', fence) or '0'
  if not string.find(last, '^%d+$') or tonumber(last) >= 9007199254740991 then
    return redis.error_reply('FOREIGN 2')
  end
  minted = whole(math.max(now(), last + 1))
  redis.call('SET', lock, token .. ':' .. minted .. ':' .. ARGV[4], 'PX', ttl)
  redis.call('SET', fence, minted, 'PX', retention)
end

if bell and ARGV[7] ~= '1' then
  others = others - redis.call('ZREM', queue, bell)
  redis.call('DEL', bell)
end
return {1, minted, others}
