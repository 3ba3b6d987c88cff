-- Takes permits, or says how long the lease that ends first may last.
-- If it is sent again with a token that already holds, it is the same grant with a new ttl.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 permits   6 value, or '' for one that is 1
--       7 seat, of zeros unless it is fair   8 flags: t only in turn, w will wait if refused, p was woken, o its session
--       has released permits and woken no waiter, q has a bell, l deletes it, h is told the holders if refused,
--       b takes a seat only, for others of its session go first   9 retention of the value, ms
-- Returns {1, fencing token, number of entries in the queue, number of further such grants that there is room for, bells rung…}
--      or {0, remaining ms (-1: no holder; -2: others go first; -3: there are too few)[, the holders], bells rung…
--          [, the entry of the queue that goes first, if it is another entry of the same bell]}
--      or {2, first value, current value} when the first value is another one, and somebody holds or waits
--      or {3, current value, bells rung…} when neither value allows that number: the waiter has left the queue
--
-- Invariant: with t, no waiter gets in before a living one with another bell, and a try that will not wait passes no waiter.
local token, ttl, wanted, seat, flags = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5]), ARGV[7], ARGV[8]
local fair, others = seat ~= NO_SEAT, number_in(queue)
if ARGV[6] ~= '' then
  local first, resized = first_value(ARGV[6])
  if first and first ~= ARGV[6] then return {2, tonumber(first), capacity()} end
  if not first then redis.call('HSET', value, 'first', ARGV[6], 'current', resized or ARGV[6]) end
end
local woken, wakeup_due = was_woken(flags, bell), purge() > 0 or has(flags, 'o')
local permits, minted, metadata = lease_of(token)
if not permits then
  local entry, in_turn, too_soon, behind, ahead = bell .. seat, true, wanted > free(), has(flags, 'b'), nil
  if has(flags, 't') then in_turn, ahead = goes_first(queue, bell, entry, has(flags, 'w')) end
  if too_soon or not in_turn or behind then
    keep(value, ARGV[9])  -- also for a waiter: a value that was resized must last
    local too_few = wanted > capacity()
    if too_few and wanted > tonumber(ARGV[6]) then  -- the first value was too small, too
      dequeue(queue, bell, seat, has(flags, 'l'))
      return {3, capacity(), unpack(wake(fair, 0))}
    end
    -- Permits that it cannot use are for other waiters: for those after it if it was woken in the queue, or else for all.
    local rung, rank = {}, redis.call('ZRANK', queue, entry) or -1
    local own = has(flags, 'w') and enqueue(queue, bell, seat, has(flags, 'q')) or nil
    if behind or (not in_turn and not ahead) or (wakeup_due and not fair) then
      rung = wake(fair, 0, entry)
    elseif woken and not fair then
      rung = wake(fair, rank + 1)
    end
    rung[#rung + 1] = own
    if not too_soon then rung[#rung + 1] = ahead end
    local earliest = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
    local remaining = earliest and math.max(0, earliest - NOW) or -1
    if wanted <= free() then remaining = -2 end
    if has(flags, 'h') then table.insert(rung, 1, describe_holders()) end
    if too_few then remaining = -3 end
    return {0, remaining, unpack(rung)}
  end
  permits, minted, metadata = wanted, mint(fence, MICROSECONDS, ARGV[3]), ARGV[4]
end
keep(fence, ARGV[3])
hold(token, permits, minted, metadata, ttl)
keep(value, ARGV[9])
dequeue(queue, bell, seat, has(flags, 'l'))
local rung = wake(fair, 0)
local room = math.floor(math.max(0, free()) / permits)
return {1, minted, others > 0 and redis.call('ZCARD', queue) or 0, room, unpack(rung)}
