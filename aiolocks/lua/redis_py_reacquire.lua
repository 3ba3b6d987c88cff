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
