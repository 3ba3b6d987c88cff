-- Tells how many permits could be acquired now.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 value, or '' for one that is 1   2 flags: t only in turn
-- Returns their number; 0 with t while there is a waiter
-- or {first value, current value} when the first value is another one, and somebody holds or waits
local first, resized
if ARGV[1] ~= '' then first, resized = first_value(ARGV[1]) end
if first and first ~= ARGV[1] then return {tonumber(first), capacity()} end
purge(true)
if foreign_key then reject_foreign(foreign_key) end
if has(ARGV[2], 't') and first_living(queue, 0) then return 0 end
local available = free()
if not first and ARGV[1] ~= '' then available = available - capacity() + (resized or ARGV[1]) end
return math.max(0, available)
