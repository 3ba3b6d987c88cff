-- Claims of a run: the reply to a grant, and the reasons for a refusal.
--
-- ARGV of every such step  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON
--       5 retention of the register, ms   6 flags: s the tick is skipped if another run goes on, q it waits for that run,
--       w it is claimed only if it is the next after the newest claimed one, f also if it is the first tick of all
--       7 redo: how often a run that was lost is run again
-- Returns {1, fencing token, due ('' out of turn), the tick claimed before ('': none), attempt, the server's time, microseconds}
--      or {0, why, the newest claimed tick ('': none), ms until a run that goes on may end (-1: none does), the server's time}:
--         e early, t taken, b another run goes on, s skipped, l too late, n the register begins with it, o another is next
--
-- Invariant: a run and its lease begin in one step. The same step sent again finds both, and changes nothing but the ttl.
local FUTURE = 60000
local token, flags, redo = ARGV[1], ARGV[6], tonumber(ARGV[7])

local function grant(run)
  hold_run(token, run.minted, ARGV[4], tonumber(ARGV[2]), ARGV[3], ARGV[5])
  return {1, run.minted, run.attempt > 0 and whole(run.due) or '', run.before, run.attempt, whole(MICROSECONDS)}
end

-- Repeats the earlier grant of the token, if the token still has its lease; else nil.
local function earlier_grant()
  local run = lease_of(token) and run_of(token)
  return run and grant(run)
end

local function begin_run(due, attempt, before)
  local minted = mint(fence, MICROSECONDS, ARGV[3])
  local run = {state = 'running', due = due, attempt = attempt, before = before, minted = minted, holder = ARGV[4]}
  write_run(token, run)
  return grant(run)
end

local function refuse(why, claimed)
  if claimed then
    keep(register, ARGV[5])
    keep(history, ARGV[5])
  end
  return {0, why, claimed and whole(claimed) or '', next_end(), whole(MICROSECONDS)}
end

-- Whether another run goes on, and the flags do not let this one begin beside it.
local function is_blocked() return next_end() >= 0 and (has(flags, 's') or has(flags, 'q')) end

-- Whether the register does not tell which tick was claimed last. Either it has none, or the server's clock was ahead and
-- has been set back: a tick further ahead than the gap, and than a minute, cannot have been claimed by the present clock.
local function is_unknown(claimed, gap) return not claimed or claimed > NOW + math.max(FUTURE, gap) end

-- Writes the newest tick that the asker knows, if the register has lost only its newest ticks; but not a claim that was
-- taken back since. Returns the newest claimed tick.
local function restore_claimed(claimed, known)
  if not claimed or not known or known > NOW or known <= claimed then return claimed end
  if known == tonumber(redis.call('HGET', register, 'undone')) then return claimed end
  set_claimed(known)
  return known
end

-- Claims the tick, though no process runs it. Ticks that are skipped in a row have one record.
local function skip(due, claimed)
  local before, last = whole(claimed), redis.call('ZRANGE', history, -1, -1)[1]
  local skipped, since = string.match(last or '', '^%["skipped",(%d+),(%d+),')
  if skipped == before then
    redis.call('ZREM', history, last)
    before = since
  end
  record(whole(NOW), 'skipped', due, before, whole(NOW), 0, '0', '""', 'null')
  set_claimed(due)
end
