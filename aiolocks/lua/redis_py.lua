-- The lock that is redis-py's on the server: one key, whose value is the token.

--# redis_py_acquire
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

--# redis_py_extend
-- Adds to the ttl of the lock if it has this token, or replaces it, as redis-py does. A lock without a ttl stays without one.
--
-- KEYS  1 lock
-- ARGV  1 token   2 time, ms   3 replace the ttl ('1') or add to it ('0')
-- Returns 1 when done, 0 when the lock does not have this token, or has no ttl
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local left = redis.call('PTTL', KEYS[1])
if left < 0 then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[3] == '0' and ARGV[2] + left or ARGV[2])
return 1

--# redis_py_holder
-- Tells the token of the holder.
--
-- KEYS  1 lock
-- Returns the token, or nil
return redis.call('GET', KEYS[1])

--# redis_py_reacquire
-- Sets the ttl of the lock again if it has this token, as redis-py does.
--
-- KEYS  1 lock
-- ARGV  1 token   2 timeout, ms   3 leave a longer ttl as it is ('1')
-- Returns 1 when the lock has this token, 0 when it has not
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[3] == '1' then
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 or left > tonumber(ARGV[2]) then return 1 end
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1

--# redis_py_release
-- Frees the lock if it has this token, as redis-py does.
--
-- KEYS  1 lock
-- ARGV  1 token
-- Returns 1 when freed, 0 when the lock does not have this token
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
return 1
