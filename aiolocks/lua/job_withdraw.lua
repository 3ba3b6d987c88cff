-- Takes back a ticket that nobody has got to know, if it owns the key: the one before it has its place again, unless
-- that was done meanwhile.
--
-- KEYS  1 owner   2 over   3 before
-- ARGV  1 ticket
-- Returns 1 when it owned the key, or 0
local owner, over, before = KEYS[1], KEYS[2], KEYS[3]
if redis.call('GET', owner) ~= ARGV[1] then return 0 end
redis.call('DEL', owner)
local former = redis.call('GET', before)
if former then
  redis.call('ZREM', over, 's' .. former)
  if not is_over(over, former) then
    redis.call('SET', owner, former, 'PX', math.max(1, redis.call('PTTL', before)))
  end
  redis.call('DEL', before)
end
return 1
