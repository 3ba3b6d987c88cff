-- Tells whether a try now would be refused, and of each key how many hold it.
--
-- KEYS  1 holders   2 leases   3 turns   4 fence   5 queue of all   6 bell   7 queue of the line
-- ARGV  1 line
-- Returns {1 or 0, for each key of the line how many permits are out, in the order of the line…}
purge(true)
if alien then reject_foreign(alien) end
local found = {(full(ARGV[1]) or first_in(ARGV[1])) and 1 or 0}
for key in each(ARGV[1]) do found[#found + 1] = tonumber(redis.call('HGET', leases, '#' .. key) or 0) end
return found
