-- Ends the run of the token, and leaves its result: a value or an error. Wakes all waiters for the result.
-- Sent again after it was done, it is the same success.
--
-- KEYS  1 run   2 value   3 fence   4 queue
-- ARGV  1 token   2 fencing token   3 retention of the fence, ms   4 for how long it is fresh, ms
--       5 for how long it is kept, ms   6 for how long it is there for callers that waited, ms   7 its cost, ms
--       8 pause: '' to replace the value that is there; else a kept value stays, and is not due again for that many ms
--       9 tag   10 payload   11 when it was made, microseconds of the server's time
-- Returns {1 when published, 0 when the token does not have the run, bells rung…}
--
-- Invariants:
-- - no caller sees the result of a token that has lost the run;
-- - a value that is kept stays when it could not be made again;
-- - the age of a result counts from when it was made, however late this step comes. A result that is not kept has no
--   `until` that a clock that is set back could bring again;
-- - the first write is a DEL, so that it works on a server that is out of memory.
local run, value, queue = KEYS[1], KEYS[2], KEYS[4]

local held = redis.call('GET', run)
local left = redis.call('HMGET', value, 'run', 'until', 'failed')
if not held_by(ARGV[1], held) then
  if left[1] == ARGV[2] or left[3] == ARGV[2] then return {1} end
  return {0, not held and wake(queue) or nil}
end
if ARGV[8] ~= '' and left[1] and NOW < tonumber(left[2]) then
  redis.call('DEL', run)
  redis.call('PEXPIRE', KEYS[3], ARGV[3])
  redis.call('HSET', value, 'failed', ARGV[2], 'again', whole(NOW + ARGV[8]))
  return {1, unpack(wake_all(queue))}
end
redis.call('DEL', run, value)
redis.call('PEXPIRE', KEYS[3], ARGV[3])
local at = math.min(ARGV[11], MICROSECONDS)  -- a clock that was set back since the grant is behind
local made = math.floor(at / 1000)
redis.call('HSET', value,
  'run', ARGV[2], 'at', whole(at), 'fresh', whole(made + ARGV[4]), 'until', ARGV[5] == '0' and 0 or whole(made + ARGV[5]),
  'cost', ARGV[7], 'again', 0, 'print', fingerprint_of(held), 'tag', ARGV[9], 'payload', ARGV[10])
redis.call('PEXPIRE', value, math.max(made + ARGV[5] - NOW, ARGV[6]))
return {1, unpack(wake_all(queue))}
