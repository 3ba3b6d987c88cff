-- Frees a lock that was granted up to then, whoever holds it, and wakes who waits. The fence stays.
--
-- KEYS  1 lock   2 nest   3 queue
-- ARGV  1 the latest fencing token that it frees
-- Returns {1 when freed, or else 0, bells rung…}
local type = type_of(KEYS[1])
local minted = type == 'string' and string.match(redis.call('GET', KEYS[1]), '^%x+:(%d+):')
if type ~= 'none' and not is_due(minted) then return {0} end
redis.call('DEL', KEYS[1], KEYS[2])
return {type == 'none' and 0 or 1, unpack(summon(KEYS[3], 0, false))}
