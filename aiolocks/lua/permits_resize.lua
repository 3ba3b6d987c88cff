-- Sets the current value, 0 or more. With more permits, it wakes the next waiter if a permit is free; with fewer, it wakes
-- all waiters in the first WALK entries: some may want more permits than there are now.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 first value   2 value from now on   3 retention of the value, ms   4 seat
-- Returns {1, 0, bells rung…} or {2, first value, current value} when the first value is another one, and
--      somebody holds or waits
local first = first_value(ARGV[1])
if first and first ~= ARGV[1] then return {2, tonumber(first), capacity()} end
local fewer = tonumber(ARGV[2]) < (first and capacity() or tonumber(ARGV[1]))
redis.call('HSET', value, 'first', ARGV[1], 'current', ARGV[2])
if ARGV[1] == ARGV[2] then redis.call('HDEL', value, 'resized') else redis.call('HSET', value, 'resized', 1) end
keep(value, ARGV[3])
purge(true)
if not fewer then return {1, 0, unpack(wake(ARGV[4] ~= NO_SEAT, 0))} end
local rung = {}
for rank = 0, WALK - 1 do
  local entry, state = first_living(queue, rank)
  if state == '' then
    local bell = bell_of(queue, entry)
    ring(bell)
    rung[#rung + 1] = bell
  end
end
return {1, 0, unpack(rung)}
