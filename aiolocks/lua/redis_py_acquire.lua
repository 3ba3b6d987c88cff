-- Takes the lock as redis-py does: its value is the token, and it has a ttl only if there is a timeout.
-- Sent again, it is the same grant with a new ttl.
--
-- KEYS  1 lock
-- ARGV  1 token   2 timeout, ms, or '' for none   3 it may have been executed before ('1')
-- Returns 1 when taken, 0 when there is something already
--
-- Invariant: a token that is there already is taken for one's own only by who may have put it there: redis-py lets
-- its users choose tokens, also two the same.
local lock, token, timeout = KEYS[1], ARGV[1], ARGV[2]

local taken
if timeout == '' then
  taken = redis.call('SET', lock, token, 'NX')
else
  taken = redis.call('SET', lock, token, 'NX', 'PX', timeout)
end
if taken then return 1 end

-- Read in any case: where changes to what was read are tracked, they are told. A key that is no string is nobody's.
if redis.pcall('GET', lock) ~= token or ARGV[3] ~= '1' then return 0 end
if timeout ~= '' then redis.call('PEXPIRE', lock, timeout) end
return 1
