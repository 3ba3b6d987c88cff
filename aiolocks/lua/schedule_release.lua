-- Ends a run, with its outcome; or takes back a claim that no process has run.
-- Sent again, it changes nothing.
--
-- KEYS  1 holders   2 leases   3 register   4 fence   5 queue   6 bell   7 history
-- ARGV  1 token   2 retention of the fence, ms   3 outcome, or '' to take the claim back   4 detail, a JSON string
--       5 redo: how often a run that was stopped is run again
-- Returns {1 when the token did run, 0 when it does not (any more)}
--
-- Invariants:
-- - a claim that is taken back leaves the register as it was before, unless a later tick has been claimed since;
-- - a run is ended only by the token that has run it without a gap until here.
purge(true)
local token, outcome = ARGV[1], ARGV[3]
local held, run = lease_of(token), run_of(token)
if not held then return {0} end
drop(token)
keep(fence, ARGV[2])
if not run then return {1} end
if outcome == 'stopped' and run.attempt >= 1 and run.attempt <= tonumber(ARGV[5]) then
  run.state = 'stopped'
  write_run(token, run)
elseif outcome ~= '' then
  -- The end of a lost run is unknown: the next claim finds the run by its missing lease.
  if outcome ~= 'lost' then end_run(token, run, outcome, ARGV[4]) end
elseif run.attempt > 1 then
  run.attempt = run.attempt - 1
  write_run(token, run)
else
  redis.call('HDEL', register, 'run:' .. token)
  if run.attempt == 1 and claimed_now() == run.due then take_back(run) end
end
return {1}
