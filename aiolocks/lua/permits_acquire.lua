-- Takes permits, or says how long the lease that ends first may last.
-- Sent again with a token that already holds, it is the same grant with a new ttl.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 permits   6 value, or '' for one that is 1
--       7 seat, of zeros unless it is fair   8 flags: t only in turn, w will wait if refused, p was woken, o somebody
--       here let go and told nobody, q has a bell, l takes it along, h is told who holds them, if refused
--       9 retention of the value, ms
-- Returns {1, fencing token, how many stand in the queue, for how many more of the same there is room, bells rung…}
--      or {0, remaining ms (-1: no holder; -2: others go first; -3: there are too few)[, who holds them], bells rung…
--          [, or the entry of the queue that goes first, if it is another one of its own bell]}
--      or {2, value that it was made with, current value}
--      or {3, current value, bells rung…} when neither value allows that many: the asker has left the queue
--
-- Invariant: with t, nobody gets in before a living one of another bell, and who will not wait passes nobody.
local token, ttl, wanted, seat, flags = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5]), ARGV[7], ARGV[8]
local fair, others = seat ~= NO_SEAT, number_in(queue)
if ARGV[6] ~= '' then
  local first = first_value()
  if first and first ~= ARGV[6] then return {2, tonumber(first), capacity()} end
  if not first then redis.call('HSET', value, 'first', ARGV[6], 'current', ARGV[6]) end
end
local woken, owing = was_woken(flags, bell), purge() > 0 or has(flags, 'o')
local permits, minted, metadata = lease_of(token)
if not permits then
  local entry, in_turn, ahead = bell .. seat, true, nil
  if has(flags, 't') then in_turn, ahead = goes_first(queue, bell, entry, has(flags, 'w')) end
  if wanted > free() or not in_turn then
    keep(value, ARGV[9])  -- also for a waiter: what was resized stays so
    local too_few = wanted > capacity()
    if too_few and wanted > tonumber(ARGV[6]) then  -- and so it was when it was made
      dequeue(queue, bell, seat, has(flags, 'l'))
      return {3, capacity(), unpack(wake(fair, 0))}
    end
    -- Permits that it cannot use are for others: for those after it if it was woken from the queue, or else for all.
    local rung, rank = {}, redis.call('ZRANK', queue, entry) or -1
    local own = has(flags, 'w') and enqueue(queue, bell, seat, has(flags, 'q')) or nil
    if (not in_turn and not ahead) or (owing and not fair) then
      rung = wake(fair, 0, entry)
    elseif woken and not fair then
      rung = wake(fair, rank + 1)
    end
    rung[#rung + 1] = own
    rung[#rung + 1] = ahead
    local earliest = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
    local remaining = earliest and math.max(0, earliest - NOW) or -1
    if wanted <= free() then remaining = -2 end
    if has(flags, 'h') then table.insert(rung, 1, told()) end
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
