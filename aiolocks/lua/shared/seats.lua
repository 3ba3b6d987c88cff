-- Gives a waiter that was refused its seat: its bell, in queues where an entry is a bell alone. lock_acquire does the same.
--
-- Invariant: when the refusal is written, its waiter has a seat in all the queues, and its bell hangs. A bell that hangs
-- is not written again: after its own write, a session would not be told that the bell is rung.
local BELL_TTL, QUEUE_TTL = 2000, 10000

local function has(flags, flag) return string.find(flags, flag, 1, true) ~= nil end

-- Does nothing unless the asker will wait (w). Returns the bell if it was gone, and its owner may believe that it hangs (q).
-- A write that the server refuses is left out: the asker is refused all the same, and is told of the server's error when it
-- listens.
local function enqueue_in_each(queues, bell, flags)
  if not has(flags, 'w') then return nil end
  local hangs, had, last = redis.call('GET', bell) == '', math.huge, 0
  for _, queue in ipairs(queues) do
    had = math.min(had, redis.call('ZSCORE', queue, bell) or had)
    last = math.max(last, redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0)
  end
  -- A waiter has one time of arrival in all the queues: else two waiters in two queues could wake each other for ever. It
  -- comes after all that wait, also if the clock was set back since they came.
  local since = had < math.huge and had or math.max(MICROSECONDS, last + 1)
  for _, queue in ipairs(queues) do
    pcall(redis.call, 'PEXPIRE', queue, QUEUE_TTL)  -- allowed out of memory; then so are later writes
    pcall(redis.call, 'ZADD', queue, 'NX', whole(since), bell)
    pcall(redis.call, 'PEXPIRE', queue, QUEUE_TTL)
  end
  if hangs then return nil end
  pcall(redis.call, 'SET', bell, '', 'PX', BELL_TTL)
  return has(flags, 'q') and bell or nil
end
