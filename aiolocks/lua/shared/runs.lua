-- Runs of a job: as many at once as its limit allows, and each ticket once at a time.
--
-- KEYS of every step, besides those of permits   7 owner   8 over   and of a ticket   10 run   11 about
--
-- Invariants:
-- - value holds the limit of the runs that go on, for as long as they do: while none goes on, a run with any limit may begin;
-- - run holds the token that runs the ticket, and is valid while that token has its lease: so no two runs of one ticket
--   go on at once, whatever the limit.
local owner, over, run, about = KEYS[7], KEYS[8], KEYS[10], KEYS[11]

-- The limit of the runs that go on, if it differs from `limit`.
local function other_limit(limit)
  local current = redis.call('ZCARD', holders) > 0 and redis.call('HGET', value, 'current')
  return current and current ~= limit and (tonumber(current) or reject_foreign(value))
end

-- When the lease of the token that runs the ticket ends, ms, or false.
local function busy_until()
  local runner = run and redis.call('GET', run)
  if runner and not is_token(runner) then reject_foreign(run) end
  return runner and redis.call('ZSCORE', holders, runner)
end

-- Gives the token its run, or prolongs the run.
local function hold_run(token, minted, metadata, limit, ttl, retention)
  hold(token, 1, minted, metadata, ttl)
  redis.call('HSET', value, 'current', limit)
  keep(value, ttl + SLACK)
  keep(fence, retention)
  if run then redis.call('SET', run, token, 'PX', ttl) end
end

-- Changes the key of a ticket that begins: gives it up (g), or keeps it (k) for at least `ms`, but only while it runs (e).
local function begin_ticket(ticket, how, ms)
  local owns = redis.call('GET', owner) == ticket
  if has(how, 'g') then
    remember(over, 'b', ticket)
    if owns then free_key(owner, about, ticket) end
  else
    local left = redis.call('PTTL', owner)
    if has(how, 'e') then remember_end(over, ticket, left) end
    redis.call('SET', owner, ticket, 'PX', math.max(left, ms))
    keep(about, ms)
  end
end

-- Settles a ticket that has ended: it was done (d), and its key is freed (f); or it was not, and its key is kept for the
-- retry (k); or the key has its own time again (e).
local function end_ticket(ticket, how)
  local owns = redis.call('GET', owner) == ticket
  if owns and has(how, 'e') then redis.call('PEXPIRE', owner, remembered_end(over, ticket) - NOW) end
  if has(how, 'd') then
    remember(over, 'd', ticket)
    redis.call('ZREM', over, 'b' .. ticket)
  end
  if owns and has(how, 'f') then free_key(owner, about, ticket) end
  if owns and has(how, 'k') then keep_key(owner, about, ttl_of(ticket)) end
end
