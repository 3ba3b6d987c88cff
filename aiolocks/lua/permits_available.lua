-- Tells how many permits could be had now.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 value, or '' for one that is 1   2 flags: t only in turn
-- Returns their number; 0 with t while somebody waits
-- or {value that it was made with, current value} when made with another value
local first = ARGV[1] ~= '' and first_value()
if first and first ~= ARGV[1] then return {tonumber(first), capacity()} end
purge(true)
if alien then reject_foreign(alien) end
if has(ARGV[2], 't') and first_living(queue, 0) then return 0 end
local there = free()
if not first and ARGV[1] ~= '' then there = there - 1 + ARGV[1] end
return math.max(0, there)
