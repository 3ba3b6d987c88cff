-- Takes a span, or tells how long a lease that is in the way may last.
-- Sent again with a token that already holds a span, it is the same grant with a new ttl.
--
-- KEYS  1 spans   2 ends   3 waits   4 fence   5 queue   6…19 pairs of ends   20 bell
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 mode   6 a   7 b
--       8 token of the upgradable that it will upgrade, or -   9 lease of the marks of a waiter, ms   10 seat
--       11 flags: w will wait if refused, p passes the wakeup on, s stays in the queue, l leaves it with its bell, h is
--       told of leases in the way, if refused
-- Returns {1, fencing token, number of waiters in the queue, for how many more of the same there is room, bells rung…}
--      or {0, remaining ms (-2 or -4: other waiters go first)[, leases in the way], bells rung…}; the leases:
--      {the server's time, microseconds; ''; and of each its token, ms left, span}
--      or {0, -3} when that upgradable does not hold a span around this one
--
-- Invariants: see spans.lua; an upgradable inherits the fencing token of its upgrade.
local token, ttl, mode, a, b, upgrade_of = ARGV[1], tonumber(ARGV[2]), ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local seat, flags = ARGV[10], ARGV[11]
local others = number_in(queue)
check()
local woken = was_woken(flags, bell)
local rung = (purge(seat) > 0 or asking) and wake_waiters(0) or {}  -- waiters enter, or reserve, before a newcomer
local waits_for_it = has(flags, 'w')
local _, _, _, noted = waiter(bell)
local mark = waits_for_it and noted or '-'
if mode ~= 'r' and not redis.call('ZSCORE', queue, bell .. seat) then mark = '-' end  -- taken for dead, it has lost its place
local had, left, right, minted, metadata = holder(token)
if had then
  keep(fence, ARGV[3])
  write_holder(token, had, left, right, minted, metadata, ttl)
else
  local upgradable, described
  if upgrade_of ~= '-' then upgradable, left, right, _, described = holder(upgrade_of) end
  if upgrade_of ~= '-' and not (upgradable == 'u' and tonumber(left) <= tonumber(a) and tonumber(b) <= tonumber(right)) then
    return {0, -3}
  end
  local own
  local passes = mark == 't' or mark == 'p' or (waits_for_it and is_first(bell, seat))
  if is_blocked(waits_for_it and bell or '', mode, a, b, upgrade_of, passes) then
    if waits_for_it then
      remove_from_side('c', bell)  -- a called waiter has asked, and cannot enter after all
      local behind = mode ~= 'r' and not passes and is_behind(bell, a, b)
      mark = mark_of(mode, a, b, upgrade_of, behind)
      write_waiter(bell, mode, a, b, mark, upgrade_of, tonumber(ARGV[9]))
      own = enqueue(queue, bell, seat, has(flags, 'q'))
    end
    local rank = woken and (redis.call('ZRANK', queue, bell .. seat) or 0)
    if rank then wake_waiters(rank < WALK and 0 or rank + 1, rung) end
    rung[#rung + 1] = own
    local ms = remaining(mode, a, b, upgrade_of)
    if ms < 0 then check_ends() end
    if has(flags, 'h') then table.insert(rung, 1, add_blocking_leases(mode, a, b, upgrade_of, 8, {whole(MICROSECONDS), ''})) end
    return {0, ms, unpack(rung)}
  end
  minted = mint(fence, MICROSECONDS, ARGV[3])
  write_holder(token, mode, a, b, minted, ARGV[4], ttl)
  if upgrade_of ~= '-' then
    redis.call('HSET', spans, upgrade_of, table.concat({'u', left, right, minted, described}, ' '))
  end
end
local leaves = waits_for_it and not has(flags, 's')
if leaves and (noted or others > 0) then remove_waiter(bell, seat) end
if has(flags, 'l') or (leaves and noted) then redis.call('DEL', bell) end
wake_waiters(0, rung)
return {1, minted, others > 0 and redis.call('ZCARD', queue) or 0, mode == 'r' and 1000000 or 0, unpack(rung)}
