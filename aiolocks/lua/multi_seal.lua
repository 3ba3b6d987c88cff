-- Writes one fencing token to all the locks of this slot that the token holds, and leaves the queues. It is the last step
-- to take locks of several slots, each of which has minted a fencing token of its own.
-- Sent again after it was done, it is the same success.
--
-- KEYS  n locks   n fences   n queues   and the bell, from a waiter that has entries in the queues
-- ARGV  1 n   2 token   3 fencing token, the largest of all slots'   4 retention of the fences, ms
-- Returns the number of others in the queues, or -1 when the token does not hold all of them: then nothing was done
--
-- Invariant: while the token holds a lock, no other holder mints a fencing token for it: its fence is not above the fencing
-- token that is written here, and the next holder gets a larger one.
local n, token, minted = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local bell = KEYS[3 * n + 1]

local held = {}
for i = 1, n do
  held[i] = held_by(token, redis.call('GET', KEYS[i]))
  if not held[i] then return -1 end
end

local others = 0
for i = 1, n do
  local metadata = string.match(held[i], ':%d+(:.*)$')
  redis.call('SET', KEYS[i], token .. ':' .. minted .. metadata, 'KEEPTTL')
  redis.call('SET', KEYS[n + i], minted, 'PX', ARGV[4])
  if bell then redis.call('ZREM', KEYS[2 * n + i], bell) end
  others = others + redis.call('ZCARD', KEYS[2 * n + i])
end
if bell then redis.call('DEL', bell) end
return others
