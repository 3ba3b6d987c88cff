-- Sets the current value, and wakes who is next if there is a permit now.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 value that it was made with   2 value from now on   3 retention of the value, ms   4 seat
-- Returns {1, 0, bells rung…} or {2, value that it was made with, current value}
local first = redis.call('HGET', value, 'first')
if first and first ~= ARGV[1] then return {2, tonumber(first), capacity()} end
redis.call('HSET', value, 'first', ARGV[1], 'current', ARGV[2])
keep(value, ARGV[3])
purge(true)
return {1, 0, unpack(wake(ARGV[4] ~= NO_SEAT, 0))}
