-- Tells whether a try would be refused now, and how many permits of each key are out.
--
-- KEYS  1 holders   2 leases   3 turns   4 fence   5 queue of all   6 bell   7 queue of the line
-- ARGV  1 line
-- Returns {1 or 0, the number of permits out for each key, in the order of the line…}
purge(true)
if foreign_key then reject_foreign(foreign_key) end
local found = {(full_key(ARGV[1]) or first_to_call(ARGV[1])) and 1 or 0}
for key in each(ARGV[1]) do found[#found + 1] = tonumber(redis.call('HGET', leases, '#' .. key) or 0) end
return found
