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
