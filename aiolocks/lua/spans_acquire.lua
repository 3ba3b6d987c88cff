-- Takes a span, or says how long a lease that is in the way may last.
-- Sent again with a token that already holds, it is the same grant with a new ttl.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…17 pairs of ends   18 bell
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 mode   6 a   7 b
--       8 token of the upgradable that will be upgraded, or -   9 lease of the marks of a waiter, ms   10 seat
--       11 flags: w will wait if refused, p passes the wakeup on, s stays in the queue, l leaves it with its bell, h is
--       told who is in the way, if refused
-- Returns {1, fencing token, how many stand in the queue, for how many more of the same there is room, bells rung…}
--      or {0, remaining ms (-2: others who wait go first)[, who is in the way], bells rung…}; of them:
--      {the server's time, microseconds; ''; and of each its token, ms left, span}
--      or {0, -3} when that upgradable does not hold a span around this one
--
-- Invariants: see spans.lua; an upgradable inherits the fencing token of its upgrade.
local token, ttl, mode, a, b, under = ARGV[1], tonumber(ARGV[2]), ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local seat, flags = ARGV[10], ARGV[11]

local others = number_in(queue)
check()
local woken = was_woken(flags, bell)
local rung = purge(seat) > 0 and settle(0) or {}  -- waiters get what is free, or reserve it, before a newcomer
local waits_for_it = has(flags, 'w')
local _, _, _, noted = waiter(bell)
local mark = waits_for_it and noted or '-'
local had, left, right, minted, metadata = holder(token)
if had then
  keep(fence, ARGV[3])
  hold(token, had, left, right, minted, metadata, ttl)
else
  local upgradable, described
  if under ~= '-' then upgradable, left, right, _, described = holder(under) end
  if under ~= '-' and not (upgradable == 'u' and tonumber(left) <= tonumber(a) and tonumber(b) <= tonumber(right)) then
    return {0, -3}
  end
  local first, own = waits_for_it and is_first(bell, seat), nil
  if blocked(mode, a, b, mark, under, first) then
    if waits_for_it then
      take('c', bell)  -- a waiter that was called has come, and cannot enter after all
      wait(bell, mode, a, b, mark_of(mode, a, b, mark, under, first), under, tonumber(ARGV[9]))
      own = enqueue(queue, bell, seat, has(flags, 'q'))
    end
    local rank = woken and (redis.call('ZRANK', queue, bell .. seat) or 0)
    if rank then settle(rank < WALK and 0 or rank + 1, rung) end
    rung[#rung + 1] = own
    local ms = remaining(mode, a, b, under)
    if ms == -2 then check_ends() end
    if has(flags, 'h') then table.insert(rung, 1, in_the_way(mode, a, b, under, 8, {whole(MICROSECONDS), ''})) end
    return {0, ms, unpack(rung)}
  end
  minted = mint(fence, MICROSECONDS, ARGV[3])
  hold(token, mode, a, b, minted, ARGV[4], ttl)
  if under ~= '-' then
    redis.call('HSET', spans, under, table.concat({'u', left, right, minted, described}, ' '))
  end
end
local leaves = waits_for_it and not has(flags, 's')
if leaves then forget(bell, seat) end
if has(flags, 'l') or (leaves and noted) then redis.call('DEL', bell) end
settle(0, rung)
return {1, minted, others > 0 and redis.call('ZCARD', queue) or 0, mode == 'r' and 1000000 or 0, unpack(rung)}
