-- Takes permits, or says how long the lease that ends first may last.
-- Sent again with a token that already holds, it is the same grant with its ttl set anew.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 permits   6 value, or '' for one that is 1
--       7 seat, of zeros unless it is fair   8 flags: t only in turn, w will wait if refused, p passes the wakeup on,
--       q has a bell, l takes it along   9 retention of the value, ms
-- Returns {1, fencing token, how many stand in the queue, for how many more of the same there is room, bells rung…}
--      or {0, remaining ms (-1: nobody holds any; -2: others who wait go first), bells rung…}
--      or {2, value that it was made with, current value}
--
-- Invariant: with t, nobody gets in while somebody of another bell stands before him and lives.
local token, ttl, wanted, seat, flags = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5]), ARGV[7], ARGV[8]
local fair = seat ~= NO_SEAT

if ARGV[6] ~= '' then
  local first = redis.call('HGET', value, 'first')
  if first and first ~= ARGV[6] then return {2, tonumber(first), capacity()} end
  if not first then redis.call('HSET', value, 'first', ARGV[6], 'current', ARGV[6]) end
  keep(value, ARGV[9])
end

local wakes = purge() > 0 or was_woken(flags, bell)
local permits, minted, metadata = lease_of(token)
if not permits then
  local first = has(flags, 't') and living(queue, 0)
  local in_turn = not first or bell_of(first) == bell
  if wanted > free() or not in_turn then
    if fair and has(flags, 'w') then sit_down(queue, bell, seat, not has(flags, 'q')) end
    local rung = {}
    if wakes and not (fair and in_turn) then rung = wake(fair, bell .. seat) end
    local earliest = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
    local remaining = earliest and math.max(0, earliest - NOW) or -1
    if wanted <= free() then remaining = -2 end
    return {0, remaining, unpack(rung)}
  end
  permits, minted, metadata = wanted, seal(fence, MICROSECONDS, ARGV[3]), ARGV[4]
end
hold(token, permits, minted, metadata, ttl)
keep(fence, ARGV[3])

stand_up(queue, bell, seat, has(flags, 'l'))
local rung = {}
if wakes then rung = wake(fair) end
return {1, minted, redis.call('ZCARD', queue), math.floor(math.max(0, free()) / permits), unpack(rung)}
