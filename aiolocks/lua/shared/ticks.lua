-- The register of a schedule: which of its ticks are claimed, and the runs that have begun and not ended.
--
-- KEYS of every step, besides those of permits (3 is the register instead of their value)   7 history
--
-- Invariants:
-- - register is a hash. Its field 'claimed' is the newest due time that was claimed, ms, and never more than the server's
--   time when it was written. It only rises, unless a claim is taken back before any process has run it, or the server's clock
--   was set back by more than a gap. A tick is claimed by the step that raises 'claimed' to it, so no tick is claimed twice.
--   If a register begins after several ticks, 'claimed' is the moment when it begins, which need not be a due time;
-- - its field 'undone' is the last claim that was taken back: some processes may know only that it was made;
-- - it has a field 'run:token' for each run from its claim to the record of its end: 'state:due:attempt:before:fencing
--   token:metadata', where before is the tick that was claimed before it. The run goes on for as long as the token has a
--   lease. Without a lease, the run has stopped or is lost;
-- - history is a sorted set, by the time of their end, of the records of runs, each a JSON array: outcome, due, before,
--   began, ended (null if unknown), attempt, fencing token, detail, holder.
local MOST_RECORDS = 100
local register, history = KEYS[3], KEYS[7]

local function claimed_now()
  local claimed = redis.call('HGET', register, 'claimed')
  if claimed and not string.find(claimed, '^%d+$') then reject_foreign(register) end
  return tonumber(claimed)
end

local function set_claimed(due) redis.call('HSET', register, 'claimed', whole(due)) end

-- Takes back the claim of a run, also for processes that know of the claim.
local function take_back(run)
  set_claimed(tonumber(run.before))
  redis.call('HSET', register, 'undone', whole(run.due))
end

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

-- Adds a record, and keeps only the last ones.
local function record(ended, outcome, due, before, began, attempt, minted, detail, holder)
  local fields = {
    '"' .. outcome .. '"', whole(due), before == '' and 'null' or before, began, ended or 'null', whole(attempt), minted,
    detail, holder,
  }
  redis.call('ZADD', history, whole(NOW), '[' .. table.concat(fields, ',') .. ']')
  keep(history, math.max(1, redis.call('PTTL', register)))
  local oldest = redis.call('ZRANGE', history, 0, -MOST_RECORDS - 1)
  if oldest[1] then redis.call('ZREM', history, unpack(oldest)) end
end

-- Ends a run, and records its outcome. The time when a lost run ended is unknown.
local function end_run(token, run, outcome, detail)
  local began = whole(math.floor(tonumber(run.minted) / 1000))
  local ended = outcome ~= 'lost' and whole(NOW)
  record(ended, outcome, run.due, run.before, began, run.attempt, run.minted, detail, run.holder)
  redis.call('HDEL', register, 'run:' .. token)
end

-- Of the runs without a lease, ends those that may not be run again, and returns the token and the facts of the earliest
-- of the others, or nil. A run out of turn (attempt 0) is not run again.
local function collect_lost(redo)
  local token, earliest
  for _, field in ipairs(redis.call('HKEYS', register)) do
    local runner = string.match(field, '^run:(%x+)$')
    if runner and not lease_of(runner) then
      local run = run_of(runner)
      if run.attempt < 1 or run.attempt > redo then
        end_run(runner, run, run.state == 'stopped' and 'stopped' or 'lost', '""')
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
