-- Frees the spans that were granted up to then, whoever holds them, and wakes who waits. The fence stays, and so do the
-- marks of who waits.
--
-- KEYS  1 spans   2 ends   3 queue   4… left and right ends of readers, upgradables and writers
-- ARGV  1 the latest fencing token that it frees
-- Returns {how many it has freed, bells rung…}
local spans, ends = KEYS[1], KEYS[2]
local freed = discard('hash', spans) + discard('zset', ends)
for _, token in ipairs(redis.call('ZRANGE', ends, 0, -1)) do
  local minted = string.match(redis.call('HGET', spans, token) or '', '^%l %S+ %S+ (%d+) ')
  if is_due(minted) then
    redis.call('ZREM', ends, token)
    redis.call('HDEL', spans, token)
    freed = freed + 1
  end
end
-- Also what stands here alone, which nobody would ever remove.
for i = 4, #KEYS do
  discard('zset', KEYS[i])
  for _, token in ipairs(redis.call('ZRANGE', KEYS[i], 0, -1)) do
    if not redis.call('ZSCORE', ends, token) then redis.call('ZREM', KEYS[i], token) end
  end
end
return {freed, unpack(summon(KEYS[3], 16, true))}
