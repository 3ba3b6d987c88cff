-- Gives back the locks of this slot that the token has taken before another slot refused it. Wakes the next waiter after its
-- own for each free lock: that waiter may have been refused meanwhile. Its own seats in the queues stay.
--
-- KEYS  n locks   n fences   n queues   and the bell that its entries in the queues name
-- ARGV  1 n   2 token   3 retention of the fences, ms
-- Returns {1 when the token held all of them, or else 0, bells rung…}
--
-- Invariants:
-- - it wakes only later waiters: a chain of wakeups comes to an end, because all queues have the same order;
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
