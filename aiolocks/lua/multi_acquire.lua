-- Takes all the locks, or says how long one of them may be held elsewhere.
-- Sent again with the token that already holds them, it is the same grant with its ttl set anew.
--
-- KEYS  n locks   n fences   n queues   and the bell, from who stands in the queues with it
-- ARGV  1 n   2 token   3 ttl, ms   4 retention of the fences, ms   5 metadata, JSON
--       6 flags: t only in turn, p passes the wakeup on, h is told who holds them, if refused
-- Returns {1, fencing token, how many others stand in the queues, 0}
--      or {0, remaining ms (-1: one has no ttl; -2: they are free, and another's turn)[, who holds], bells rung…}; of who
--      holds: {the server's time, microseconds; ''; of the first locks that are held '', remaining ms, what stands there}
--
-- Invariant: all or none; the fencing token is larger than what stands behind any of the fences.
local n, token, ttl, retention, flags = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[6]
local bell, passing = KEYS[3 * n + 1], string.find(flags, 'p', 1, true)
local MOST_TOLD, BELL_TTL = 26, 2000  -- of eight locks; ms

local mine, others, remaining, free, told = 0, 0, nil, {}, {whole(MICROSECONDS), ''}
local minted = MICROSECONDS
for i = 1, n do
  local held = redis.call('GET', KEYS[i])
  if held_by(token, held) then
    mine = mine + 1
  elseif known(KEYS[i], held) then
    local left = redis.call('PTTL', KEYS[i])
    remaining = math.max(remaining or -1, left)
    if #told < MOST_TOLD then told[#told + 1], told[#told + 2], told[#told + 3] = '', left, held end
  else
    free[#free + 1] = KEYS[2 * n + i]
  end
  others = others + number_in(KEYS[2 * n + i])
end

if remaining then
  -- A waiter that was woken for one of them and lacks another passes that on, once; also one that has not heard its bell.
  local unaware, rung = bell and not passing and redis.call('EXISTS', bell) == 0, {}
  if passing or unaware then
    for _, queue in ipairs(free) do rung[#rung + 1] = wake(queue, bell) end
    if unaware and #rung > 0 then redis.call('SET', bell, '', 'PX', BELL_TTL) end
  end
  if string.find(flags, 'h', 1, true) then table.insert(rung, 1, told) end
  return {0, remaining, unpack(rung)}
end
if mine == n then
  minted = minted_in(redis.call('GET', KEYS[1]))
  redis.call('PEXPIRE', KEYS[1], ttl)  -- so that a server out of memory lets it be the same grant
else
  for i = 1, n do
    local first = redis.call('ZRANGE', KEYS[2 * n + i], 0, 0)[1]
    if string.find(flags, 't', 1, true) and first and first ~= bell then return {0, -2} end
    minted = beyond(KEYS[n + i], minted)
  end
  minted = whole(minted)
end

for i = 1, n do
  redis.call('SET', KEYS[i], token .. ':' .. minted .. ':' .. ARGV[5], 'PX', ttl)
  redis.call('SET', KEYS[n + i], minted, 'PX', retention)
  if bell then others = others - redis.call('ZREM', KEYS[2 * n + i], bell) end
end
if bell then redis.call('DEL', bell) end
return {1, minted, others, 0}
