-- Spans while their slot moves: a holder has entries in three sets and a hash. Other holders and waiters have entries in sets
-- that may be on the other node. So no other holder or waiter is removed, not even after its deadline.
waits, queue, bell = HIDDEN, HIDDEN, HIDDEN
purge = function() return 0 end
for i = 1, 2 do
  local mode = string.match(redis.call('HGET', spans, ARGV[i]) or '', '^%l')
  local side = mode and SIDES[mode]
  if side and not (is_here(ends) and is_here(side[1]) and is_here(side[2])) then return NOT_HERE end
end
