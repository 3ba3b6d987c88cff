-- Takes a span, or says how long the lease that ends first may last.
-- Sent again with a token that already holds, it is the same grant with its ttl set anew.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…15 pairs of ends   16 bell
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 mode   6 a   7 b
--       8 token of the upgradable that is to be upgraded, or -   9 lease of the marks of who waits, ms   10 seat
--       11 flags: w will wait if refused, p passes the wakeup on, s stays in the queue, l takes its bell along
-- Returns {1, fencing token, how many stand in the queue, for how many more of the same there is room, bells rung…}
--      or {0, remaining ms (-2: others who wait go first), bells rung…}
--      or {0, -3} when that upgradable does not hold a span around this one
--
-- Invariants: see spans.lua; an upgradable inherits the fencing token of its upgrade.
local token, ttl, mode, a, b, under = ARGV[1], tonumber(ARGV[2]), ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local seat, flags = ARGV[10], ARGV[11]

local changed = purge(seat)
local rung = {}
local had, left, right, minted, metadata = holder(token)
local _, _, _, mark = waiter(bell)
if not mark or not has(flags, 'w') then mark = '-' end
if had then
  hold(token, had, left, right, minted, metadata, ttl)
  keep(fence, ARGV[3])
else
  local upgradable, described
  upgradable, left, right, _, described = holder(under)
  if under ~= '-' and not (upgradable == 'u' and tonumber(left) <= tonumber(a) and tonumber(b) <= tonumber(right)) then
    return {0, -3}
  end
  if blocked(mode, a, b, mark, under) then
    if has(flags, 'w') then
      if mark == '-' and mode ~= 'w' and overlapping('w', a, b) > 0 then mark = 't' end
      if mark == '-' and mode == 'w' and (under ~= '-' or overlapping('p', a, b) == 0) then mark = 'p' end
      wait(bell, mode, a, b, mark, under, ARGV[9])
    end
    if changed > 0 then
      rung = settle(0)
    elseif has(flags, 'p') then
      rung = settle((redis.call('ZRANK', queue, bell .. seat) or -1) + 1)
    end
    local earliest = redis.call('ZRANGE', ends, 0, 0, 'WITHSCORES')[2]
    return {0, earliest and math.max(0, earliest - NOW) or -2, unpack(rung)}
  end
  minted = whole(beyond(fence, MICROSECONDS))
  redis.call('SET', fence, minted, 'PX', ARGV[3])
  hold(token, mode, a, b, minted, ARGV[4], ttl)
  if under ~= '-' then
    redis.call('HSET', spans, under, table.concat({'u', left, right, minted, described}, ' '))
  end
end

if has(flags, 'w') and not has(flags, 's') then leave(bell, seat) end
if has(flags, 'l') then redis.call('DEL', bell) end
if changed > 0 or mark == 'p' or has(flags, 'p') then rung = settle(0) end
return {1, minted, redis.call('ZCARD', queue), mode == 'r' and 1000000 or 0, unpack(rung)}
