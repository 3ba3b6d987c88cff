-- Claims of a run: the reply to a grant, and the reasons for a refusal.
--
-- ARGV of every such step  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON
--       5 retention of the register, ms   6 flags: s the tick is skipped if another run goes on, q it waits for that run,
--       w it is claimed only if it is the next after the newest claimed one, f also if it is the first tick of all
--       7 redo: how often a run that was lost or stopped is run again
-- Returns {1, fencing token, due ('' out of turn), the tick claimed before ('': none), attempt, the server's time, microseconds,
--          the record of each run that was found lost…}
--      or {0, why, the newest claimed tick of the definition ('': none), ms until a run that goes on may end (-1: none does),
--          the server's time, the records…}, where why is
--         e early, t taken, b another run goes on, s skipped, l too late, n the register begins with it, o another is next,
--         g this token was granted the run before, and its lease has ended
--
-- Invariant: a run and its lease begin in one step. The same step sent again finds both, and changes nothing but the ttl.
local token, flags, redo = ARGV[1], ARGV[6], tonumber(ARGV[7])

local function reply_with(fields)
  for _, text in ipairs(lost_runs) do fields[#fields + 1] = text end
  return fields
end

local function grant(run)
  hold_run(token, run.minted, ARGV[4], tonumber(ARGV[2]), ARGV[3], ARGV[5])
  return reply_with({1, run.minted, run.attempt > 0 and whole(run.due) or '', run.before, run.attempt, whole(MICROSECONDS)})
end

local function refuse(why, claimed)
  if claimed then
    keep(register, ARGV[5])
    keep(history, ARGV[5])
  end
  return reply_with({0, why, claimed and whole(claimed) or '', next_end(), whole(MICROSECONDS)})
end

-- Repeats the earlier grant of the token, if the token still has its lease. If the lease has ended, only the asker knows
-- that no process runs it, and is told. Else nil.
local function earlier_grant()
  local run = run_of(token)
  return run and (lease_of(token) and grant(run) or refuse('g'))
end

-- Mints the fencing token of a run. To be done before the step writes anything else: a fence that is foreign, or that the user
-- of the server may not read, ends the step here, with the register as it was.
local function mint_for_run() return mint(fence, MICROSECONDS, ARGV[3]) end

local function begin_run(minted, due, attempt, before)
  local run = {state = 'running', due = due, attempt = attempt, before = before, minted = minted, holder = ARGV[4]}
  write_run(token, run)
  return grant(run)
end

-- Whether another run goes on, and the flags do not let this one begin beside it.
local function is_blocked() return next_end() >= 0 and (has(flags, 's') or has(flags, 'q')) end
