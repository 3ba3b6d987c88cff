-- Ends the run of the token with what it leaves: a value or an error; and wakes all who wait for that.
-- Sent again after it was done, it is the same success.
--
-- KEYS  1 run   2 value   3 fence   4 queue
-- ARGV  1 token   2 fencing token   3 retention of the fence, ms   4 for how long it is kept, ms
--       5 for how long it is there for those who waited, ms   6 tag   7 payload
-- Returns {1 when published, 0 when the token does not have the run} and the bells of who was woken
--
-- Invariants:
-- - what a token leaves that has lost the run is seen by nobody;
-- - the first write is a DEL, so that it works on a server that is out of memory.
local run, value, queue = KEYS[1], KEYS[2], KEYS[4]

local held = redis.call('GET', run)
if not held_by(ARGV[1], held) then
  if redis.call('HGET', value, 'run') == ARGV[2] then return {1} end
  return {0, not held and wake(queue) or nil}
end
redis.call('DEL', run, value)
redis.call('PEXPIRE', KEYS[3], ARGV[3])
redis.call('HSET', value,
  'run', ARGV[2], 'at', whole(MICROSECONDS), 'until', whole(NOW + ARGV[4]),
  'print', print_of(held), 'tag', ARGV[6], 'payload', ARGV[7])
redis.call('PEXPIRE', value, math.max(ARGV[4], ARGV[5]))
return {1, unpack(wake_all(queue))}
