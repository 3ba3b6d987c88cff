-- Claims a tick of a schedule, by its due time, and begins its run in the same step; or says why not.
-- Sent again with the token that runs already, it is the same grant with a new ttl.
--
-- KEYS  1 holders   2 leases   3 register   4 fence   5 queue   6 bell   7 history
-- ARGV  1 to 7 as in shared/claims   8 due, ms   9 the newest tick that the asker knows to be claimed, ms, or ''
--       10 the tick before the due one, ms   11 gap to the next tick, ms   12 latest moment to begin it at, ms, or ''
--       13 ms after its due time up to which a tick is run although the register is gone
-- Returns what a claim is granted, or why not, as in shared/claims
--
-- Invariants:
-- - a tick is claimed only if the newest claimed one < due <= the server's time: no clock of a process counts;
-- - where the register is gone, a tick is run only by one that knows the tick before it (or says f), and asks in time;
--   else it may have been claimed before, as any other tick that is due by now: the register begins after all of them.
local due, known = tonumber(ARGV[8]), tonumber(ARGV[9])

purge()
local mine, claimed = again(), claimed_now()
if mine then return mine end
if due > NOW then return refuse('e', claimed) end

claimed = put_back(claimed, known)
if is_gone(claimed, ARGV[11]) then
  local last = has(flags, 'f') and tonumber(ARGV[10]) or known
  local in_time = last and last >= tonumber(ARGV[10]) and NOW - due <= tonumber(ARGV[13])
  claimed = in_time and math.min(last, due) or NOW < due + tonumber(ARGV[11]) and due or NOW
  set_claimed(claimed)
  if not in_time then return refuse('n', claimed) end
end

-- One that was lost is run again before the next one, or when there is no next one yet; else it is over.
local again_first = has(flags, 'w') or due <= claimed
local lost, run = abandoned(again_first and redo or 0)
if lost and not hindered() then
  end_run(lost, run, run.state == 'stopped' and 'stopped' or 'lost', '""')
  return begin(run.due, run.attempt + 1, run.before)
end

if due <= claimed then return refuse('t', claimed) end
if has(flags, 'w') and known ~= claimed then return refuse('o', claimed) end
if ARGV[12] ~= '' and NOW > tonumber(ARGV[12]) then return refuse('l', claimed) end
if hindered() then
  -- A tick that was due before that run began has been waiting for it.
  local began = math.floor(tonumber(redis.call('GET', fence) or 0) / 1000)
  if has(flags, 'q') or due <= began then return refuse('b', claimed) end
  skip(due, claimed)
  return refuse('s', due)
end
set_claimed(due)
return begin(due, 1, whole(claimed))
