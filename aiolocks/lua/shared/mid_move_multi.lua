-- Several locks while their slot moves: the holder needs all the lock keys, which must be on one node.
local number = #ARGV[1] < 32 and tonumber(ARGV[1]) or #KEYS  -- with a token first, all keys are locks
local here = 0
for i = 1, number do here = here + redis.call('EXISTS', KEYS[i]) end
if here > 0 and here < number then return NOT_HERE end
for i = 2 * number + 1, #KEYS do KEYS[i] = HIDDEN end
