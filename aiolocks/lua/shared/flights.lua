-- Runs of a single flight. The run key is that of a simple lock, and its metadata begins with the fingerprint:
-- 'token:fencing token:{"fingerprint":"…",…'.
--
-- Invariant: value is a hash with the result of a run: run (its fencing token), at (when the result was made,
-- microseconds of the server's time), fresh (until when no run need make it again, ms), until (until when it is kept, ms, or 0),
-- cost (of its run, ms), again (from when on it may be made again, ms), failed (the last run that could not make it again),
-- print (fingerprint), tag and payload. The hash outlasts its `until`: callers that waited for that run still ask for it.
local AT_ONCE = 16

local function fingerprint_of(held)
  return string.match(known(KEYS[1], held), '^%x+:%d+:{"fingerprint":"(%x*)"') or reject_foreign(KEYS[1])
end

-- Wakes all waiters: this step rings the first living ones, and each of them rings as many more when it asks again.
-- Returns the bells that it rang.
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
