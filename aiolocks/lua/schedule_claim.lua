-- Claims a tick of a schedule, by its due time, and begins its run in the same step; or tells why not.
-- Sent again with the token that runs already, it is the same grant with a new ttl.
--
-- KEYS  1 holders   2 leases   3 register   4 fence   5 queue   6 bell   7 history
-- ARGV  1 to 7 as in shared/claims   8 due, ms   9 the newest tick that the asker knows to be claimed, ms, or ''
--       10 the tick before the due one, ms   11 gap to the next tick, ms   12 latest moment to begin it at, ms, or ''
--       13 ms after its due time up to which a tick is run although the register is gone
-- Returns the grant or the refusal, as in shared/claims
--
-- Invariants:
-- - a tick is claimed only if the newest claimed one < due <= the server's time: no clock of a process counts;
-- - if the register is gone, a tick is run only for an asker that knows the tick before it (or sends f), and asks in time.
--   Else the tick may have been claimed before, like any other tick that is due by now: the register begins after them all.
local due, known = tonumber(ARGV[8]), tonumber(ARGV[9])

purge()
local mine, claimed = earlier_grant(), claimed_now()
if mine then return mine end
if due > NOW then return refuse('e', claimed) end

claimed = restore_claimed(claimed, known)
if is_unknown(claimed, ARGV[11]) then
  local last = has(flags, 'f') and tonumber(ARGV[10]) or known
  local in_time = last and last >= tonumber(ARGV[10]) and NOW - due <= tonumber(ARGV[13])
  claimed = in_time and math.min(last, due) or NOW < due + tonumber(ARGV[11]) and due or NOW
  set_claimed(claimed)
  if not in_time then return refuse('n', claimed) end
end

-- A lost run is run again before the next tick if all ticks are run (w), or if no newer tick is due yet; else it has ended.
local lost_first = has(flags, 'w') or due <= claimed
local lost, run = collect_lost(lost_first and redo or 0)
if lost and not is_blocked() then
  end_run(lost, run, run.state == 'stopped' and 'stopped' or 'lost', '""')
  return begin_run(run.due, run.attempt + 1, run.before)
end

if due <= claimed then return refuse('t', claimed) end
if has(flags, 'w') and known ~= claimed then return refuse('o', claimed) end
if ARGV[12] ~= '' and NOW > tonumber(ARGV[12]) then return refuse('l', claimed) end
if is_blocked() then
  -- A tick that was due before that run began waits for the run.
  local began = math.floor(tonumber(redis.call('GET', fence) or 0) / 1000)
  if has(flags, 'q') or due <= began then return refuse('b', claimed) end
  skip(due, claimed)
  return refuse('s', due)
end
set_claimed(due)
return begin_run(due, 1, whole(claimed))
