-- Rejects foreign values under the keys of spans, before the step writes anything.

local function reject_foreign_ids(key, ids)
  for _, id in ipairs(ids) do
    if not is_token(id) and not is_bell(id) then reject_foreign(key) end
  end
end

-- Rejects foreign pairs of ends. It reads the first and the last of each: a foreign one comes before or after all others, or
-- nearly so.
local function check_ends()
  for i = 6, 19 do
    for rank = -1, 0 do reject_foreign_ids(KEYS[i], redis.call('ZRANGE', KEYS[i], rank, rank)) end
  end
end

-- Rejects any foreign value. In most cases a few counts show that there is none: spans has a field for each holder and
-- each waiter, and without a field there are no ends. Else it reads all: perhaps only a part of the keys was lost.
local function check()
  local fields = redis.call('HLEN', spans)
  local entered = redis.call('ZCARD', ends) + redis.call('ZCARD', waits)
  local more = fields == 0 and redis.call('EXISTS', unpack(KEYS, 6, 19)) or 0
  if fields == entered and more == 0 then return end
  reject_foreign_ids(spans, redis.call('HKEYS', spans))
  for _, key in ipairs({ends, waits}) do reject_foreign_ids(key, redis.call('ZRANGE', key, 0, -1)) end
  check_ends()
end
