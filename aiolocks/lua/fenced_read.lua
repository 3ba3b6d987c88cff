-- Returns the value that was written last.
--
-- KEYS  1 register
-- Returns {form of the value, value}, or {} when nothing was ever written
local form = redis.call('HGET', KEYS[1], 'form')
if not form and redis.call('HLEN', KEYS[1]) > 0 then reject_foreign(KEYS[1]) end
if not form then return {} end
return {form, redis.call('HGET', KEYS[1], 'value')}
