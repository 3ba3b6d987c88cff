-- Whether what stands under the keys of spans is ours: asked before anything is written.

local function expect_ours(key, ids)
  for _, id in ipairs(ids) do
    if not is_token(id) and not is_bell(id) then reject_foreign(key) end
  end
end

-- Whether the pairs of ends are ours: what others have put there stands before or after all, or nearly so.
local function check_ends()
  for i = 6, 17 do
    for rank = -1, 0 do expect_ours(KEYS[i], redis.call('ZRANGE', KEYS[i], rank, rank)) end
  end
end

-- Whether all is ours. That shows without a walk: spans has a field for each that holds or waits, and while there is
-- none, there are no ends. Else it goes through all: it may be that half of it was lost.
local function check()
  local fields = redis.call('HLEN', spans)
  local entered = redis.call('ZCARD', ends) + redis.call('ZCARD', waits)
  local more = fields == 0 and redis.call('EXISTS', unpack(KEYS, 6, 17)) or 0
  if fields == entered and more == 0 then return end
  expect_ours(spans, redis.call('HKEYS', spans))
  for _, key in ipairs({ends, waits}) do expect_ours(key, redis.call('ZRANGE', key, 0, -1)) end
  check_ends()
end
