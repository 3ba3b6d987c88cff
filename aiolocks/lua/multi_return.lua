-- Gives back what the token has taken of this slot, for another slot refused, and wakes the next that waits behind it for
-- what is free now: that one may have been refused meanwhile. Its own place in the queues stays.
--
-- KEYS  n locks   n fences   n queues   and the bell with which it may stand in them
-- ARGV  1 n   2 token   3 retention of the fences, ms
-- Returns {1 when the token held all of them, or else 0, bells rung…}
--
-- Invariants:
-- - it wakes only those behind it: who wakes each other in turn comes to an end, the queues being in the same order;
-- - writes with DEL, ZREM and PEXPIRE alone, so that it works on a server that is out of memory.
local n, bell = tonumber(ARGV[1]), KEYS[3 * tonumber(ARGV[1]) + 1]
local freed, rung = 0, {}
for i = 1, n do
  local held = redis.call('GET', KEYS[i])
  if held_by(ARGV[2], held) then
    redis.call('DEL', KEYS[i])
    redis.call('PEXPIRE', KEYS[n + i], ARGV[3])
    freed, held = freed + 1, nil
  end
  if not held then rung[#rung + 1] = wake(KEYS[2 * n + i], bell) end
end
return {freed == n and 1 or 0, unpack(rung)}
