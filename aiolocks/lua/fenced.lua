-- Registers that refuse late writes.

--# fenced_write
-- Writes the value unless a newer fencing token has written before.
-- Sent again, it leaves the same value there.
--
-- KEYS  1 register
-- ARGV  1 fencing token, decimal   2 form of the value   3 value
-- Returns '' when written, or the newer fencing token
--
-- Invariants:
-- - register is a hash without a ttl. It holds the fence, which never falls, and the value that was written with it;
-- - fencing tokens are compared digit by digit: a Lua number has 53 bits.
local seen = redis.call('HGET', KEYS[1], 'fence')
if not seen and redis.call('HLEN', KEYS[1]) > 0 or seen and not string.find(seen, '^%d+$') then reject_foreign(KEYS[1]) end
seen = seen or ''
if #seen > #ARGV[1] or (#seen == #ARGV[1] and seen > ARGV[1]) then return seen end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'form', ARGV[2], 'value', ARGV[3])
return ''

--# fenced_read
-- Returns the value that was written last.
--
-- KEYS  1 register
-- Returns {form of the value, value}, or {} when nothing was ever written
local form = redis.call('HGET', KEYS[1], 'form')
if not form and redis.call('HLEN', KEYS[1]) > 0 then reject_foreign(KEYS[1]) end
if not form then return {} end
return {form, redis.call('HGET', KEYS[1], 'value')}
