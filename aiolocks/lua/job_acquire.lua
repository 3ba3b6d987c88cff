-- Takes a running slot of a job, or gives the caller a seat to wait for one, or finds that the call is a duplicate.
-- Sent again with the token that already runs, it is the same grant with a new ttl: nothing is decided again.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell   7 owner   8 over   9 seen
--       and of a ticket   10 run   11 about
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 seat   6 flags: q has a bell,
--       l takes the bell along, a no other waiter shares the bell, h is told of the holders, if refused, b takes a seat
--       only, for others of its session go first
--       7 how many may wait, or '' for any number   8 ticket, or '' for none
--       9 change of the ticket's key as the run begins: g given up, k kept, e only until the run ends, then for its own time
--       10 the text that the names of all bells of the session contain   11 limit: how many may run at once
-- Returns {1, fencing token, how many wait in the queue, 0, bells rung…}
--      or {0, remaining ms (-2: other waiters go first)[, holders], bells rung…}
--      or {2, why it is a duplicate: f as many wait as may, d done, s superseded, o another ticket owns the key, e so it does
--          and the key has no ttl, bells rung…}
--      or {3, the limit of the runs that go on, if it differs}
--
-- Invariants: no run begins while a living waiter of another bell is before it; a waiter whose run begins has left the
-- queue, so that a later waiter finds room; each run that begins wakes the next waiter while there are slots.
local token, ttl, seat, flags, ticket = ARGV[1], tonumber(ARGV[2]), ARGV[5], ARGV[6], ARGV[8]
local entry, others = bell .. seat, number_in(queue)

purge()
local limit = other_limit(ARGV[11])
if limit then return {3, limit} end
local permits, minted, metadata = lease_of(token)
if not permits then
  local duplicate = ticket ~= '' and why_duplicate(owner, over, ticket)
  local first, busy = first_living(queue, 0), busy_until()
  local in_turn, slot = not first or bell_of(queue, first) == bell, not busy and free() > 0
  if not duplicate and (has(flags, 'b') or not (slot and in_turn)) then
    local room = slot and ARGV[7] == '0' and '1' or ARGV[7]  -- a slot is free, and the first waiter may have no run to begin
    local admission, rung = find_room(KEYS[9], room, entry, ARGV[10], ticket)
    if admission ~= 'f' then
      rung[#rung + 1] = enqueue(queue, bell, seat, has(flags, 'q'))
      check_in(KEYS[9], entry, admission, rung)
      rung[#rung + 1] = wake(true, 0, entry)[1]
      if has(flags, 'h') then table.insert(rung, 1, describe_holders()) end
      local ends = busy or (free() < 1 and redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2])
      return {0, ends and math.max(0, ends - NOW) or -2, unpack(rung)}
    end
    duplicate = 'f'
  end
  if duplicate then
    if duplicate == 'o' and redis.call('PTTL', owner) < 0 then duplicate = 'e' end
    dequeue(queue, bell, seat, has(flags, 'l'), has(flags, 'a'))
    check_out(KEYS[9], entry, false)
    return {2, duplicate, unpack(wake(true, 0))}
  end
  if ticket ~= '' then begin_ticket(ticket, ARGV[9], ttl) end
  minted, metadata = mint(fence, MICROSECONDS, ARGV[3]), ARGV[4]
end
hold_run(token, minted, metadata, ARGV[11], ttl, ARGV[3])
dequeue(queue, bell, seat, has(flags, 'l'), has(flags, 'a'))
check_out(KEYS[9], entry, not permits)
local rung = wake(true, 0)
return {1, minted, others > 0 and redis.call('ZCARD', queue) or 0, 0, unpack(rung)}
