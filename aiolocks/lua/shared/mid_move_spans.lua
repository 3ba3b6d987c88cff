-- Spans while their slot moves: a holder stands in three sets and a hash, other holders and waiters in sets that may be
-- on the other node. So nobody else is removed, not even one that has come to its end.
waits, queue, bell = HIDDEN, HIDDEN, HIDDEN
purge = function() return 0 end
for i = 1, 2 do
  local mode = string.match(redis.call('HGET', spans, ARGV[i]) or '', '^%l')
  local side = mode and SIDES[mode]
  if side and not (is_here(ends) and is_here(side[1]) and is_here(side[2])) then return NOT_HERE end
end
