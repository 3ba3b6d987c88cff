-- A store that refuses whoever comes too late.
-- KEYS[1]: hash with the value, and the largest fencing token of a write so far
-- ARGV[1]: value   ARGV[2]: fencing token of who writes   ARGV[3]: milliseconds to keep it
-- Returns: 1 written, 0 refused
local seen = tonumber(redis.call('HGET', KEYS[1], 'fencing_token') or '0')
if tonumber(ARGV[2]) < seen then
  return 0
end
redis.call('HSET', KEYS[1], 'value', ARGV[1], 'fencing_token', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
