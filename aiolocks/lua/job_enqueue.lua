-- Makes a ticket the owner of a job's key, or says for how long another one owns it.
-- Sent again by the one that owns it, it is the same success with its ttl set anew.
--
-- KEYS  1 owner   2 over   3 before
-- ARGV  1 ticket   2 ttl, ms   3 flag: r takes the place of another
-- Returns -1 when it owns the key, or for how many more ms another does
--
-- Invariant: before is the ticket whose place the owner has taken, for as long as that one would have owned the key.
local owner, over, before, ticket = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local owning = redis.call('GET', owner)
if not owning then
  redis.call('DEL', before)
elseif owning ~= ticket then
  local left = math.max(1, redis.call('PTTL', owner))
  if ARGV[3] ~= 'r' then return left end
  redis.call('SET', before, owning, 'PX', left)
  remember(over, 's', owning)
end
redis.call('SET', owner, ticket, 'PX', ARGV[2])
return -1
