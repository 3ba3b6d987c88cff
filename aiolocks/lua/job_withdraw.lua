-- Takes back a ticket that nobody has got to know: if it owns the key, the one before it has its place again; if that was
-- done, only for the rest of a time of its own, which it has whatever becomes of it. If another has taken its place,
-- nobody has it again.
--
-- KEYS  1 owner   2 over   3 before   4 about
-- ARGV  1 ticket
-- Returns 1 when it owned the key, or 0
local owner, over, before, ticket = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
redis.call('HDEL', KEYS[4], ticket)
if redis.call('GET', owner) ~= ticket then
  for _, entry in ipairs(redis.call('ZRANGE', before, 0, -1)) do
    if string.sub(entry, 1, #ticket + 1) == ticket .. ':' then redis.call('ZREM', before, entry) end
  end
  return 0
end
redis.call('DEL', owner)
local last = redis.call('ZRANGE', before, -1, -1)[1]
if last then
  local former, ends = string.match(last, '^(.*):(%d+)$')
  redis.call('ZREM', before, last)
  redis.call('ZREM', over, 's' .. former)
  if is_over(over, former) then ends = end_of(over, former) end
  if ends - NOW > 0 then redis.call('SET', owner, former, 'PX', whole(ends - NOW)) end
end
return 1
