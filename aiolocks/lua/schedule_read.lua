-- Returns the content of the register of a schedule, and its last records. Writes nothing.
--
-- KEYS  1 holders   2 register   3 history
-- ARGV  1 how many records
-- Returns {the server's time, microseconds, the newest claimed tick ('': none), {token, facts of its run…},
--          {the tokens that have a lease now}, {records, the newest last}}
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local runs, records, number = {}, {}, tonumber(ARGV[1])
if number > 0 then
  for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
    local token = string.match(field, '^run:(%x+)$')
    if token then
      runs[#runs + 1] = token
      runs[#runs + 1] = redis.call('HGET', KEYS[2], field)
    end
  end
  records = redis.call('ZRANGE', KEYS[3], -number, -1)
end
local claimed = redis.call('HGET', KEYS[2], 'claimed') or ''
local living = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('%.0f', math.floor(now / 1000) + 1), '+inf')
return {string.format('%.0f', now), claimed, runs, living, records}
