-- Before lock_release: frees a lock for which nobody waits, without the functions that are made for what follows.
--
-- Invariant: it does what lock_release would do, or nothing. A queue that is no queue is for lock_release to tell.
if not KEYS[4] and not ARGV[4] then
  local held = redis.call('GET', KEYS[1])
  if held and string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. ':'
      and (ARGV[3] ~= '1' or redis.pcall('ZCARD', KEYS[3]) == 0) then
    redis.call('PEXPIRE', KEYS[2], ARGV[2])
    redis.call('DEL', KEYS[1])
    return {1}
  end
end
