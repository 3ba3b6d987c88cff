-- The seat of a waiter that was refused, in queues of bells without seats of their own: as lock_acquire gives it.
--
-- Invariant: when the refusal is written, its waiter stands in all the queues, and its bell hangs. One that hangs is left
-- alone: after a write of its own session, that would not hear it any more.
local BELL_TTL, QUEUE_TTL = 2000, 10000

local function has(flags, flag) return string.find(flags, flag, 1, true) ~= nil end

-- Nothing unless it will wait (w). Returns the bell if that was gone, and its owner may believe that it hangs (q). A
-- write that the server does not allow is left out: the asker is refused all the same, and hears of that as soon as it
-- listens.
local function enqueue_in_each(queues, bell, flags)
  if not has(flags, 'w') then return nil end
  local hangs, since = redis.call('GET', bell) == '', MICROSECONDS
  for _, queue in ipairs(queues) do
    -- The same order in all of several queues: else two who stand in two of them could wake each other for ever.
    since = math.min(since, redis.call('ZSCORE', queue, bell) or since)
  end
  for _, queue in ipairs(queues) do
    pcall(redis.call, 'PEXPIRE', queue, QUEUE_TTL)  -- out of memory, it opens the door
    pcall(redis.call, 'ZADD', queue, 'NX', whole(since), bell)
    pcall(redis.call, 'PEXPIRE', queue, QUEUE_TTL)
  end
  if hangs then return nil end
  pcall(redis.call, 'SET', bell, '', 'PX', BELL_TTL)
  return has(flags, 'q') and bell or nil
end
