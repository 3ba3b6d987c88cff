-- Frees the lock if the token holds it, and leaves the queue; then, if the lock is free, wakes the next waiter.
-- Until `at least` after its grant the lock is not free: it is kept, without a holder. The fence stays for its retention.
--
-- KEYS  1 lock   2 fence   3 queue   4 bell (only from a waiter that leaves the queue with it)
-- ARGV  1 token   2 retention of the fence, ms   3 wake the next ('1')   4 at least, ms (absent: free at once)
-- Returns {1 when freed, 0 when the token does not hold the lock, or the lease that has taken its place[, bell rung]}
--
-- Invariants:
-- - at most one waiter is woken: the first with a bell; the owners of entries before it are dead or were woken already;
-- - a lock that is kept has a token of no holder: NOBODY before the token of its last holder. It lasts until `at least`
--   after the grant, as the fencing token tells it; a server clock that was set back since then does not lengthen that;
-- - writes with DEL, ZREM and PEXPIRE first, so that it works on a server that is out of memory.
local lock, queue, bell = KEYS[1], KEYS[3], KEYS[4]
local NOBODY = string.rep('0', 32)

local freed = 0
local held = redis.call('GET', lock)
if held and string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. ':' then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  local left = 0
  if ARGV[4] then
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    local granted = math.min(now, string.match(held, ':(%d+):'))
    left = math.ceil(granted / 1000 + ARGV[4]) - math.floor(now / 1000)
  end
  if left > 0 then
    held = NOBODY .. held
    redis.call('SET', lock, held, 'PX', left)
  else
    redis.call('DEL', lock)
    held = false
  end
  freed = 1
elseif not bell then  -- a waiter that leaves was never its holder
  freed = thief_of(ARGV[1])
end
if bell then
  redis.call('ZREM', queue, bell)
  redis.call('DEL', bell)
end
while ARGV[3] == '1' and not held do
  -- The bells are not in KEYS: the queue names them, and they share its slot.
  local entry = redis.call('ZRANGE', queue, 0, 0)[1]
  local first = entry and bell_in(queue, entry, 0)
  if not first then break end
  if redis.call('DEL', first) == 1 then return {freed, first} end
  redis.call('ZREM', queue, first)
end
return {freed}
