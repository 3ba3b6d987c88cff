-- Gives the running slot back if the token runs, settles its ticket, and leaves the queue; then wakes the next waiter.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell   7 owner   8 over   9 seen
--       and of a ticket   10 run   11 about
-- ARGV  1 token   2 retention of the fence, ms   3 seat   4 flags: r wakes the next waiter, l leaves the queue with its
--       bell, a no other waiter shares the bell, d the ticket was done, f its key is freed, k it was not done and its key is
--       kept for the retry, e its key has its own time again   5 ticket
-- Returns {1 when freed, 0 when the token does not run, bells rung…}
--
-- Invariant: only a token that has run the ticket without a gap until here notes that the ticket was done.
local flags, ticket = ARGV[4], ARGV[5]
purge(true)
local held = lease_of(ARGV[1])
if held then
  drop(ARGV[1])
  keep(fence, ARGV[2])
  if run then end_ticket(ticket, flags) end
end
if run and redis.call('GET', run) == ARGV[1] then redis.call('DEL', run) end
dequeue(queue, bell, ARGV[3], has(flags, 'l'), has(flags, 'a'))
local rung = {}
if has(flags, 'r') then rung = wake(true, 0) end
check_out(KEYS[9], bell .. ARGV[3], false)  -- last: dead waiters have been dropped from the queue then
return {held and 1 or 0, unpack(rung)}
