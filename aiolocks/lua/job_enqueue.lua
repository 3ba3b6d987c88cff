-- Makes a ticket the owner of a job's key, or says for how long another one owns it.
-- Sent again with the ticket that owns the key, it is the same success with a new ttl. Sent again with a ticket whose
-- place another ticket has taken since, it changes nothing.
--
-- KEYS  1 owner   2 over   3 before   4 about
-- ARGV  1 ticket   2 ttl, ms   3 flag: r takes the place of another   4 metadata, JSON
-- Returns -1 when the ticket owns or has owned the key, or for how many more ms another ticket owns it (0: without an end)
--
-- Invariant: before is a sorted set of the tickets whose place others have taken since the key was free, by the time of
-- that, each with the end of the time for which it would have owned the key: 'ticket:ms'. Only the last ones are kept, because
-- a ticket is taken back only a moment after it was sent.
local MOST_KEPT = 16
local owner, over, before, about, ticket = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1]
local owning = owning_ticket(owner)
if why_over(over, ticket) then return -1 end
if not owning then
  redis.call('DEL', before, about)
elseif owning ~= ticket then
  local left = redis.call('PTTL', owner)
  if ARGV[3] ~= 'r' then return left < 0 and 0 or math.max(1, left) end
  redis.call('ZADD', before, whole(MICROSECONDS), owning .. ':' .. whole(NOW + left))
  for _, oldest in ipairs(redis.call('ZRANGE', before, 0, -MOST_KEPT - 1)) do
    redis.call('ZREM', before, oldest)
    redis.call('HDEL', about, string.match(oldest, '^(.*):'))
  end
  keep(before, left)
  remember(over, 's', owning)
end
redis.call('SET', owner, ticket, 'PX', ARGV[2])
redis.call('HSET', about, ticket, ARGV[4])
keep(about, ARGV[2])
return -1
