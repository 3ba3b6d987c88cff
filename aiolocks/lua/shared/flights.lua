-- Runs of a single flight. The run key is that of a simple lock, whose metadata begins with the fingerprint:
-- 'token:fencing token:{"fingerprint":"…",…'.
--
-- Invariant: value is a hash of the run that left it (its fencing token), at (when that was, microseconds of the
-- server's time), fresh (until when it need not be made again, ms), until (for how long it is kept, ms), cost (of its
-- run, ms), again (from when on it may be made again, ms), failed (the last run that could not make it again), print
-- (fingerprint), tag and payload. It outlasts its `until` for the sake of those who waited for that run.
local AT_ONCE = 16

local function print_of(held)
  return string.match(known(KEYS[1], held), '^%x+:%d+:{"fingerprint":"(%x*)"') or reject_foreign(KEYS[1])
end

-- Wakes all who stand in the queue: here the first of them who live, who then wake as many each. Returns their bells.
local function wake_all(queue)
  local rung = {}
  while #rung == 0 do
    local entries = redis.call('ZRANGE', queue, 0, AT_ONCE - 1)
    if #entries == 0 then break end
    for _, entry in ipairs(entries) do
      local bell = bell_in(queue, entry, 0)
      if bell and redis.call('DEL', bell) == 1 then rung[#rung + 1] = bell end
    end
    redis.call('ZREM', queue, unpack(entries))
  end
  return rung
end
