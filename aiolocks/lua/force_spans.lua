-- Frees the spans that were granted up to a fencing token, whichever tokens hold them, and wakes the waiters. The fence
-- stays, and the marks of waiters stay.
--
-- KEYS  1 spans   2 ends   3 queue   4 waits   5 fence   6… left and right ends of the spans and of the marks
-- ARGV  1 the latest fencing token that it frees   3 the mark for the holders
-- Returns {number of spans that it has freed, bells rung…}
local spans, ends, waits = KEYS[1], KEYS[2], KEYS[4]
discard_fence(KEYS[5])
local left = redis.call('PTTL', spans)
local freed = discard('hash', spans) + discard('zset', ends, waits, unpack(KEYS, 6))
for _, id in ipairs(redis.call('ZRANGE', waits, 0, -1)) do
  if not string.find(id, '.bell.', 1, true) then redis.call('ZREM', waits, id) end
end
for _, token in ipairs(redis.call('ZRANGE', ends, 0, -1)) do
  local minted = string.match(redis.call('HGET', spans, token) or '', '^%l %S+ %S+ (%d+) ')
  if is_due(minted) then
    redis.call('ZREM', ends, token)
    redis.call('HDEL', spans, token)
    tell(token, minted, left)
    freed = freed + 1
  end
end
-- It also frees entries without a deadline, which no other step would ever remove.
local function is_alone(id) return not (redis.call('ZSCORE', ends, id) or redis.call('ZSCORE', waits, id)) end
for _, id in ipairs(redis.call('HKEYS', spans)) do
  if is_alone(id) then freed = freed + redis.call('HDEL', spans, id) end
end
for i = 6, #KEYS do
  for _, id in ipairs(redis.call('ZRANGE', KEYS[i], 0, -1)) do
    if is_alone(id) then redis.call('ZREM', KEYS[i], id) end
  end
end
return {freed, unpack(wake_first(KEYS[3], 16, true))}
