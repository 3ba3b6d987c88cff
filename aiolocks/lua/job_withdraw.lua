-- Takes back a ticket that no process knows of. If it owns the key, the ticket before it owns the key again; if that one
-- was done meanwhile, then only for the rest of its own time with the key (e in over), which it keeps also when it is done.
-- If another ticket has taken the place of the ticket, the ticket will not own the key again.
--
-- KEYS  1 owner   2 over   3 before   4 about
-- ARGV  1 ticket
-- Returns 1 when the ticket owned the key, or 0
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
  if why_over(over, former) then ends = remembered_end(over, former) end
  if ends - NOW > 0 then redis.call('SET', owner, former, 'PX', whole(ends - NOW)) end
end
return 1
