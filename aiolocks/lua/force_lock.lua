-- Frees a lock that was granted up to a fencing token, whichever token holds it, and wakes the waiters. Its fence stays.
--
-- KEYS  1 lock   2 nest   3 queue   4 fence   5 value (only of a run)
-- ARGV  1 the latest fencing token that it frees   3 the mark for its holder
-- Returns {1 when freed, or else 0, bells rung…}
discard_fence(KEYS[4])
if KEYS[5] then discard('hash', KEYS[5]) end
if KEYS[5] and not redis.call('HGET', KEYS[5], 'run') then redis.call('DEL', KEYS[5]) end
local type, left = type_of(KEYS[1]), redis.call('PTTL', KEYS[1])
local token, minted
if type == 'string' then token, minted = string.match(redis.call('GET', KEYS[1]), '^(%x+):(%d+):') end
if type ~= 'none' and not is_due(minted) then return {0} end
redis.call('DEL', KEYS[1], KEYS[2])
if token then tell(token, minted, left) end
return {type == 'none' and 0 or 1, unpack(wake_first(KEYS[3], 0, false))}
