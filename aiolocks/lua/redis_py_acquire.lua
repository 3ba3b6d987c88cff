-- Takes the lock as redis-py does: its value is the token, and it has a ttl only if there is a timeout.
-- Sent again, it is the same grant with a new ttl.
--
-- KEYS  1 lock
-- ARGV  1 token   2 timeout, ms, or '' for none   3 it may have been executed before ('1')
-- Returns 1 when taken, 0 when the key has a value already
--
-- Invariant: a token in the key counts as the asker's own only if this step may have been executed before: users of
-- redis-py choose their tokens, and two of them may choose the same.
local lock, token, timeout = KEYS[1], ARGV[1], ARGV[2]

local taken
if timeout == '' then
  taken = redis.call('SET', lock, token, 'NX')
else
  taken = redis.call('SET', lock, token, 'NX', 'PX', timeout)
end
if taken then return 1 end

-- GET in any case: a connection that tracks the keys it reads is then told of changes. A key of another type has no token.
if redis.pcall('GET', lock) ~= token or ARGV[3] ~= '1' then return 0 end
if timeout ~= '' then redis.call('PEXPIRE', lock, timeout) end
return 1
