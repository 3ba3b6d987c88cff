-- The register of a schedule: which of its ticks are claimed, and the runs that have begun and not ended.
--
-- KEYS of every step, besides those of permits (3 is the register instead of their value)   7 history
--
-- Invariants:
-- - register is a hash. Its field 'claimed' is the newest due time that was claimed, ms, and never more than the server's
--   time when it was written: it only rises, unless a claim is taken back before anybody has run it, or the server's clock
--   was set back by more than a gap. A tick is claimed by the step that raises 'claimed' to it, so no tick is claimed twice.
--   A register that begins after several ticks has the moment of that instead, which need be no due time;
-- - its field 'undone' is the last claim that was taken back, of which some may know that it was made;
-- - it has a field 'run:token' for each run from its claim to the record of its end: 'state:due:attempt:before:fencing
--   token:metadata', where before is the tick that was claimed before it. The run goes on for as long as the token has a
--   lease. Without one, it has stopped, or is lost;
-- - history is a sorted set, by the time of their end, of the records of runs, each a JSON array: outcome, due, before,
--   began, ended (null where nobody knows), attempt, fencing token, detail, holder.
local MOST_RECORDS = 100
local register, history = KEYS[3], KEYS[7]

local function claimed_now()
  local claimed = redis.call('HGET', register, 'claimed')
  if claimed and not string.find(claimed, '^%d+$') then reject_foreign(register) end
  return tonumber(claimed)
end

local function set_claimed(due) redis.call('HSET', register, 'claimed', whole(due)) end

-- The tick is as if nobody had claimed it, also for those that know of the claim.
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

-- Keeps the last records only.
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

-- The run has ended, and is remembered with its outcome. When a run that is lost has ended, nobody knows.
local function end_run(token, run, outcome, detail)
  local began = whole(math.floor(tonumber(run.minted) / 1000))
  local ended = outcome ~= 'lost' and whole(NOW)
  record(ended, outcome, run.due, run.before, began, run.attempt, run.minted, detail, run.holder)
  redis.call('HDEL', register, 'run:' .. token)
end

-- The token of the earliest run that has no lease any more and may be run again, or nil. Those that may not are ended. A
-- run out of turn (attempt 0) is not run again.
local function abandoned(redo)
  local token, earliest
  for _, field in ipairs(redis.call('HKEYS', register)) do
    local of = string.match(field, '^run:(%x+)$')
    if of and not lease_of(of) then
      local run = run_of(of)
      if run.attempt < 1 or run.attempt > redo then
        end_run(of, run, run.state == 'stopped' and 'stopped' or 'lost', '""')
      elseif not earliest or run.due < earliest.due then
        token, earliest = of, run
      end
    end
  end
  return token, earliest
end

-- Milliseconds until the first lease of a run ends, or -1 where nothing runs.
local function next_end()
  local ends = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
  return ends and math.max(0, ends - NOW) or -1
end

-- One that has its lease from now on, or goes on with it.
local function go(token, minted, metadata, ttl, retention, lasting)
  hold(token, 1, minted, metadata, ttl)
  keep(fence, retention)
  keep(register, lasting)
  keep(history, lasting)
end
