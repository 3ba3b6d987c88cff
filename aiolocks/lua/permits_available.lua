-- Tells how many permits could be had now.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 value, or '' for one that is 1   2 flags: t only in turn
-- Returns their number; 0 with t while somebody waits
-- or {value that it was made with, current value} when made with another value
local first = redis.call('HGET', value, 'first')
if first and first ~= ARGV[1] then return {tonumber(first), capacity()} end
purge()
if has(ARGV[2], 't') and first_in(queue) then return 0 end
if not first and ARGV[1] ~= '' then return math.max(0, ARGV[1] - redis.call('ZCARD', holders)) end
return math.max(0, free())
