-- Schedules: ticks are claimed in a register, and each run of one is a permit.

--# ticks
-- The register of a schedule: which of its ticks are claimed, and the runs that have begun and not ended.
--
-- KEYS of every step, besides those of permits (3 is the register instead of their value)   7 history
--
-- Invariants:
-- - register is a hash. Its field 'claimed:definition' is of the ticks of one definition, 'due:asked:expected'. The first is the
--   newest due time that was claimed, ms, and never more than the server's time when it was written. It only rises, unless a
--   claim is taken back before any process has run it, or the server's clock was set back by more than a gap. A tick is claimed
--   by the step that raises it to the tick, so no tick is claimed twice. If a definition begins after several ticks, it is the
--   moment when the definition begins, which need not be a due time. The others are when a process of that definition asked
--   last, and until when one must ask again;
-- - its field 'next:definition' is the moment of the next claim that the process which asked last has named. Operators read it;
-- - its field 'claimed' is the newest due time of all definitions, for versions of aiolocks that know no definitions. It has a
--   zero in front, unless such a version has written it;
-- - its field 'undone' is the last claim that was taken back: some processes may know only that it was made;
-- - it has a field 'run:token' for each run from its claim to the record of its end: 'state:due:attempt:before:fencing
--   token:metadata', where before is the tick that was claimed before it, or empty. The run goes on for as long as the token
--   has a lease. Without a lease, the run has stopped or is lost, or its state is 'unbegun': no process runs this attempt;
-- - history is a sorted set, by the time of their end, of the records of runs, each a JSON array: outcome, due, before,
--   began, ended (null if unknown), attempt, fencing token, detail, holder.
local MOST_RECORDS = 100
local register, history = KEYS[3], KEYS[7]
local lost_runs = {}  -- the records of those that this step has found lost

-- The newest claimed tick of that definition, when a process asked for one last, and until when one must ask again; or nil.
local function slot_of(definition)
  local slot = redis.call('HGET', register, 'claimed:' .. definition)
  if not slot then return nil end
  local due, asked, expected = string.match(slot, '^(%d+):(%d+):(%d+)$')
  if not due then reject_foreign(register) end
  return tonumber(due), tonumber(asked), tonumber(expected)
end

local function write_slot(definition, due, asked, expected)
  redis.call('HSET', register, 'claimed:' .. definition, whole(due) .. ':' .. whole(asked) .. ':' .. whole(expected))
end

-- The newest claimed tick for versions that know no definitions, and whether one of them has written it; or nil.
local function told_to_older()
  local claimed = redis.call('HGET', register, 'claimed')
  if claimed and not string.find(claimed, '^%d+$') then reject_foreign(register) end
  return tonumber(claimed), claimed and string.sub(claimed, 1, 1) ~= '0'
end

local function tell_older(due) redis.call('HSET', register, 'claimed', '0' .. whole(due)) end

-- The facts of the run of that token, or nil.
local function run_of(token)
  local run = redis.call('HGET', register, 'run:' .. token)
  if not run then return nil end
  local state, due, attempt, before, minted, holder = string.match(run, '^(%l+):(%d+):(%d+):(%d*):(%d+):(.*)$')
  if not state then reject_foreign(register) end
  return {state = state, due = tonumber(due), attempt = tonumber(attempt), before = before, minted = minted, holder = holder}
end

local function write_run(token, run)
  local fields = {run.state, whole(run.due), whole(run.attempt), run.before, run.minted, run.holder}
  redis.call('HSET', register, 'run:' .. token, table.concat(fields, ':'))
end

local function delete_run(token) redis.call('HDEL', register, 'run:' .. token) end

-- How often the tick of that run was run.
local function times_begun(run) return run.state == 'unbegun' and run.attempt - 1 or run.attempt end

-- Adds a record, keeps only the last ones, and returns it.
local function record(ended, outcome, due, before, began, attempt, minted, detail, holder)
  local fields = {
    '"' .. outcome .. '"', whole(due), before == '' and 'null' or before, began, ended or 'null', whole(attempt), minted,
    detail, holder,
  }
  local text = '[' .. table.concat(fields, ',') .. ']'
  redis.call('ZADD', history, whole(NOW), text)
  keep(history, math.max(1, redis.call('PTTL', register)))
  local oldest = redis.call('ZRANGE', history, 0, -MOST_RECORDS - 1)
  if oldest[1] then redis.call('ZREM', history, unpack(oldest)) end
  return text
end

-- Ends a run, and records its outcome. The time when a lost run ended is unknown.
local function end_run(token, run, outcome, detail)
  local began = whole(math.floor(tonumber(run.minted) / 1000))
  local ended = outcome ~= 'lost' and whole(NOW)
  local text = record(ended, outcome, run.due, run.before, began, run.attempt, run.minted, detail, run.holder)
  if outcome == 'lost' then lost_runs[#lost_runs + 1] = text end
  delete_run(token)
end

-- Ends a run that has no lease.
local function end_unheld(token, run) end_run(token, run, run.state == 'stopped' and 'stopped' or 'lost', '""') end

-- Of the runs without a lease, ends those that may not be run again, and returns the token and the facts of the earliest
-- of the others, or nil. A run out of turn (attempt 0) is not run again; with a `redo` of -1, none is.
local function collect_lost(redo)
  local token, earliest
  for _, field in ipairs(redis.call('HKEYS', register)) do
    local runner = string.match(field, '^run:(%x+)$')
    if runner and not lease_of(runner) then
      local run = run_of(runner)
      if run.attempt < 1 or times_begun(run) > redo then
        end_unheld(runner, run)
      elseif not earliest or run.due < earliest.due then
        token, earliest = runner, run
      end
    end
  end
  return token, earliest
end

-- Milliseconds until the first lease of a run ends, or -1 if no run goes on.
local function next_end()
  local ends = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
  return ends and math.max(0, ends - NOW) or -1
end

-- Gives the token the lease of its run, or prolongs the lease.
local function hold_run(token, minted, metadata, ttl, retention, lasting)
  hold(token, 1, minted, metadata, ttl)
  keep(fence, retention)
  keep(register, lasting)
  keep(history, lasting)
end

--# claims
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

--# schedule_claim
-- Claims a tick of a schedule, by its due time, and begins its run in the same step; or tells why not.
-- Sent again with the token that runs already, it is the same grant with a new ttl.
--
-- KEYS  1 holders   2 leases   3 register   4 fence   5 queue   6 bell   7 history
-- ARGV  1 to 7 as in shared/claims   8 due, ms   9 the newest tick that the asker knows to be claimed, ms, or ''
--       10 the tick before the due one, ms   11 gap to the next tick, ms   12 latest moment to begin it at, ms, or ''
--       13 ms after its due time up to which a tick is run although the register is gone
--       14 definition: a hexadecimal name for the times of the schedule   15 moment of the next claim, ms
-- Returns the grant or the refusal, as in shared/claims
--
-- Invariants:
-- - a tick is claimed only if the newest claimed one of its definition < due <= the server's time: no clock of a process counts;
-- - if the register is gone, a tick is run only for an asker that knows the tick before it (or sends f), and asks in time.
--   Else the tick may have been claimed before, like any other tick that is due by now: the register begins after them all;
-- - so does a definition that the register does not have, or that comes back after another one has taken its place.
local FUTURE, HICCUP = 60000, 1000
local due, known, before, gap = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local definition = ARGV[14]
local ask_by = math.max(NOW, tonumber(ARGV[15])) + math.min(math.max(gap / 2, HICCUP), FUTURE)

-- Whether no present clock can have claimed that tick: the server's clock was ahead, and has been set back.
local function is_ahead(tick) return tick > NOW + math.max(FUTURE, gap) end

-- Writes that a process of this definition has asked, and when it will make its next claim.
local function write_own(tick)
  write_slot(definition, tick, NOW, ask_by)
  redis.call('HSET', register, 'next:' .. definition, ARGV[15])
end

local function set_claimed(tick)
  write_own(tick)
  local older = told_to_older()
  if not older or older < tick or is_ahead(older) then tell_older(tick) end
end

-- Refuses the claim. The register knows that a process of this definition has asked.
local function turn_away(why, claimed)
  local refusal = refuse(why, claimed)
  if claimed then write_own(claimed) end
  return refusal
end

-- The newest tick that is claimed of the definition, or nil if the definition is new here. Forgets the definitions that
-- were not asked for again: others have taken their place. A tick that is claimed and not due, for the server's clock was set
-- back, is not forgotten.
local function newest_claimed()
  local older, unheard = told_to_older()
  local undone, last_asked = tonumber(redis.call('HGET', register, 'undone')), 0
  -- A version that knows no definitions has claimed a tick, nobody knows of which: it counts for each of them.
  local function heard(tick) return unheard and (tick == undone and older or math.max(tick, older)) or tick end
  for _, field in ipairs(redis.call('HKEYS', register)) do
    local other = string.match(field, '^claimed:(%x+)$')
    if other and other ~= definition then
      local tick, asked, expected = slot_of(other)
      last_asked = math.max(last_asked, asked)
      if NOW > expected and NOW >= tick then
        redis.call('HDEL', register, field, 'next:' .. other)
      elseif unheard then
        write_slot(other, heard(tick), asked, expected)
      end
    end
  end
  local claimed, asked, expected = slot_of(definition)
  if claimed then
    claimed = (NOW <= expected or last_asked <= asked or claimed >= due) and heard(claimed) or nil
  elseif unheard and last_asked == 0 and (older <= before or older >= due) then
    claimed = older
  end
  if unheard then
    tell_older(older)
    if claimed then write_slot(definition, claimed, NOW, ask_by) end
  end
  return claimed
end

-- Writes the newest tick that the asker knows, if the register has lost only its newest ticks; but not a claim that was
-- taken back since. Returns the newest claimed tick.
local function restore_claimed(claimed)
  if not claimed or not known or known > NOW or known <= claimed then return claimed end
  if known == tonumber(redis.call('HGET', register, 'undone')) then return claimed end
  set_claimed(known)
  return known
end

-- Claims the tick, though no process runs it. Ticks that are skipped in a row have one record.
local function skip(claimed)
  local since, last = whole(claimed), redis.call('ZRANGE', history, -1, -1)[1]
  local holder = '{"definition":"' .. definition .. '"}'
  local skipped, first = string.match(last or '', '^%["skipped",(%d+),(%d+),')
  if skipped == since and string.find(last, holder, 1, true) then
    redis.call('ZREM', history, last)
    since = first
  end
  record(whole(NOW), 'skipped', due, since, whole(NOW), 0, '0', '""', holder)
  set_claimed(due)
end

purge()
local mine = earlier_grant()
if mine then return mine end

local claimed = newest_claimed()
if due > NOW then return turn_away('e', claimed) end

claimed = restore_claimed(claimed)
if not claimed or is_ahead(claimed) then
  local last = has(flags, 'f') and before or known
  local in_time = last and last >= before and NOW - due <= tonumber(ARGV[13])
  claimed = in_time and math.min(last, due) or NOW < due + gap and due or NOW
  set_claimed(claimed)
  if not in_time then return turn_away('n', claimed) end
end

-- A lost run is run again before the next tick if all ticks are run (w), or if no newer tick is due yet; else it has ended.
local lost, run = collect_lost((has(flags, 'w') or due <= claimed) and redo or -1)
if lost and not is_blocked() then
  local minted = mint_for_run()
  if run.state == 'unbegun' then delete_run(lost) else end_unheld(lost, run) end
  -- Between two ticks of different definitions, nobody can count others.
  local since = string.find(run.holder, '"definition":"' .. definition .. '"', 1, true) and run.before or ''
  return begin_run(minted, run.due, times_begun(run) + 1, since)
end

if due <= claimed then return turn_away('t', claimed) end
if has(flags, 'w') and known ~= claimed then return turn_away('o', claimed) end
if ARGV[12] ~= '' and NOW > tonumber(ARGV[12]) then return turn_away('l', claimed) end
if is_blocked() then
  -- A tick that was due before that run began waits for the run.
  local began = math.floor(tonumber(redis.call('GET', fence) or 0) / 1000)
  if has(flags, 'q') or due <= began then return turn_away('b', claimed) end
  skip(claimed)
  return turn_away('s', due)
end
local granted = begin_run(mint_for_run(), due, 1, whole(claimed))
set_claimed(due)
return granted

--# schedule_trigger
-- Begins a run of a schedule out of turn, which claims no tick; or tells why not.
-- Sent again with the token that runs already, it is the same grant with a new ttl.
--
-- KEYS  1 holders   2 leases   3 register   4 fence   5 queue   6 bell   7 history
-- ARGV  1 to 7 as in shared/claims
-- Returns the grant or the refusal (b or s), as in shared/claims
purge()
local mine = earlier_grant()
if mine then return mine end
collect_lost(redo)
if is_blocked() then return refuse(has(flags, 's') and 's' or 'b') end
return begin_run(mint_for_run(), NOW, 0, '')

--# schedule_release
-- Ends a run, with its outcome; or gives back a claim that no process has run, or will.
-- Sent again, it changes nothing.
--
-- KEYS  1 holders   2 leases   3 register   4 fence   5 queue   6 bell   7 history
-- ARGV  1 token   2 retention of the fence, ms   3 outcome, or '' to give the claim back   4 detail, a JSON string
--       5 redo: how often a run that was stopped is run again   6 definition, as in schedule_claim
-- Returns {1 when the token did run, 0 when it does not (any more)}
--
-- Invariants:
-- - a claim that is given back leaves the register as it was before. If a later tick has been claimed since, or an earlier
--   attempt was made, the run stays, unbegun: the next process to ask runs it, or ends it as lost. Its lease does not count,
--   for the token that has it says that nothing was run;
-- - a run is ended only by the token that has run it without a gap until here.
local token, outcome, definition = ARGV[1], ARGV[3], ARGV[6]

local function give_back(run)
  local claimed, asked, expected = slot_of(definition)
  if run.attempt == 1 and claimed == run.due and run.before ~= '' then
    delete_run(token)
    write_slot(definition, tonumber(run.before), asked, expected)
    if told_to_older() == run.due then tell_older(tonumber(run.before)) end
    redis.call('HSET', register, 'undone', whole(run.due))
  elseif run.attempt > 0 then
    run.state = 'unbegun'
    write_run(token, run)
  else
    delete_run(token)
  end
end

purge(true)
local held, run = lease_of(token), run_of(token)
if held then
  drop(token)
  keep(fence, ARGV[2])
end
if run and outcome == '' then
  give_back(run)
elseif held and run and outcome == 'stopped' and run.attempt >= 1 and run.attempt <= tonumber(ARGV[5]) then
  run.state = 'stopped'
  write_run(token, run)
elseif held and run and outcome ~= 'lost' then
  -- The end of a lost run is unknown: the next claim finds the run by its missing lease.
  end_run(token, run, outcome, ARGV[4])
end
return {held and 1 or 0}

--# schedule_read
-- Returns the content of the register of a schedule, and its last records. Writes nothing.
--
-- KEYS  1 holders   2 register   3 history
-- ARGV  1 how many records
-- Returns {the server's time, microseconds, the newest claimed tick ('': none), {token, facts of its run…},
--          {the tokens that have a lease now}, {records, the newest last}}
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local runs, records, number = {}, {}, tonumber(ARGV[1])
if number > 0 then
  for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
    local token = string.match(field, '^run:(%x+)$')
    if token then
      runs[#runs + 1] = token
      runs[#runs + 1] = redis.call('HGET', KEYS[2], field)
    end
  end
  records = redis.call('ZRANGE', KEYS[3], -number, -1)
end
local claimed = redis.call('HGET', KEYS[2], 'claimed') or ''
local living = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('%.0f', math.floor(now / 1000) + 1), '+inf')
return {string.format('%.0f', now), claimed, runs, living, records}
