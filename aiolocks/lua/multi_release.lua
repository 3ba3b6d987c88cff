-- Frees the locks that the token holds, and leaves the queues; then wakes the next waiter of each free lock.
-- The fences stay for their retention.
--
-- KEYS  n locks   n fences   n queues   and the bell, from a waiter that leaves the queues with it
-- ARGV  1 n   2 token   3 retention of the fences, ms   4 wake the next ('1')
-- Returns {1 when the token held all of them, or else 0, or the lease that has taken its place, bells rung…}
--
-- Invariant: writes with DEL, ZREM and PEXPIRE alone, so that it works on a server that is out of memory.
local n, bell = tonumber(ARGV[1]), KEYS[3 * tonumber(ARGV[1]) + 1]
local freed, thief, rung = 0, 0, {}
if bell then redis.call('DEL', bell) end
for i = 1, n do
  local held = redis.call('GET', KEYS[i])
  if held_by(ARGV[2], held) then
    redis.call('DEL', KEYS[i])
    redis.call('PEXPIRE', KEYS[n + i], ARGV[3])
    freed, held = freed + 1, nil
  elseif thief == 0 and not bell then  -- a waiter that leaves was never their holder
    thief = thief_of(ARGV[2], KEYS[i])
  end
  if bell then redis.call('ZREM', KEYS[2 * n + i], bell) end
  if not held and ARGV[4] == '1' then rung[#rung + 1] = wake(KEYS[2 * n + i]) end
end
return {freed == n and 1 or thief, unpack(rung)}
