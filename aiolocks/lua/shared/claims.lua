-- Claims of a run: what they are granted, and why not.
--
-- ARGV of every such step  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 retention of the register, ms
--       6 flags: s skipped if another run goes on, q waits for it, w only if it is the next after the newest claimed one,
--       f also if it is the first tick of all
--       7 redo: how often a run that was lost is run again
-- Returns {1, fencing token, due ('' out of turn), the tick claimed before ('': none), attempt, the server's time, microseconds}
--      or {0, why, the newest claimed tick ('': none), ms until a run that goes on may end (-1: none goes on), the server's time}:
--         e early, t taken, b another run goes on, s skipped, l too late, n the register begins with it, o another is next
--
-- Invariant: a run and its lease begin in one step, and that step sent again finds them and changes nothing but the ttl.
local FUTURE = 60000
local token, flags, redo = ARGV[1], ARGV[6], tonumber(ARGV[7])

local function granted(run)
  go(token, run.minted, ARGV[4], tonumber(ARGV[2]), ARGV[3], ARGV[5])
  return {1, run.minted, run.attempt > 0 and whole(run.due) or '', run.before, run.attempt, whole(MICROSECONDS)}
end

-- The earlier grant of the token, if it still has its lease.
local function again()
  local run = lease_of(token) and run_of(token)
  return run and granted(run)
end

local function begin(due, attempt, before)
  local minted = mint(fence, MICROSECONDS, ARGV[3])
  local run = {state = 'running', due = due, attempt = attempt, before = before, minted = minted, holder = ARGV[4]}
  write_run(token, run)
  return granted(run)
end

local function refuse(why, claimed)
  if claimed then
    keep(register, ARGV[5])
    keep(history, ARGV[5])
  end
  return {0, why, claimed and whole(claimed) or '', next_end(), whole(MICROSECONDS)}
end

-- Whether a run goes on that is in the way.
local function hindered() return next_end() >= 0 and (has(flags, 's') or has(flags, 'q')) end

-- Whether the newest claimed tick says nothing: there is none, or a clock of the server was ahead that has been set back. A
-- tick that lies further ahead than a gap, and a minute, cannot have been claimed by the clock that goes on.
local function is_gone(claimed, gap) return not claimed or claimed > NOW + math.max(FUTURE, gap) end

-- Where the register has lost the newest ticks only, one that knows them puts them back; but not a claim that was taken
-- back since.
local function put_back(claimed, known)
  if not claimed or not known or known > NOW or known <= claimed then return claimed end
  if known == tonumber(redis.call('HGET', register, 'undone')) then return claimed end
  set_claimed(known)
  return known
end

-- The tick is claimed, and nobody runs it. Those that are skipped in a row have one record.
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
