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
local minted = MICROSECONDS
for i = 1, n do
  queues[i] = KEYS[2 * n + i]
  local held = redis.call('GET', KEYS[i])
  if held_by(token, held) then
    mine = mine + 1
  elseif known(KEYS[i], held) then
    local left = redis.call('PTTL', KEYS[i])
    remaining, told[2] = math.max(remaining or -1, left), left < 0 and told[2] == '' and i or told[2]
    if #told < MOST_TOLD then told[#told + 1], told[#told + 2], told[#told + 3] = '', left, held end
  else
    free[#free + 1] = queues[i]
  end
  others = others + number_in(queues[i])
end

if remaining then
  -- A waiter that was woken for one of them and lacks another passes the wakeup on, once; also one that does not know of it.
  local rung = {}
  if has(flags, 'p') or has(flags, 'q') and redis.call('EXISTS', bell) == 0 then
    pass_wakeup_on(free, bell, rung, has(flags, 'q') and not has(flags, 'o'))
  end
  rung[#rung + 1] = enqueue_in_each(queues, bell, flags)
  if has(flags, 'h') then table.insert(rung, 1, told) end
  return {0, told[2] == '' and remaining or -1, unpack(rung)}
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
