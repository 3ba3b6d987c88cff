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
