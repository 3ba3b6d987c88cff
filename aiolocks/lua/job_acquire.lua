-- Takes the running slot of a job, waits for it, or finds that this is a duplicate.
-- Sent again with the token that already runs, it is the same grant with its ttl set anew: what was decided stands.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell   7 owner   8 over   9 seen
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 seat   6 flags: q has a bell, l takes
--       it along   7 how many may wait, or '' for any number   8 ticket, or '' for none   9 what becomes of the key as
--       it begins: g given up, k kept   10 what the bells of the session have in their names
-- Returns {1, fencing token, how many stand in the queue, 0}
--      or {0, remaining ms (-2: others who wait go first), bells rung…}
--      or {2, why it is a duplicate: f as many wait as may, d done, s superseded, o owned by another, bells rung…}
--
-- Invariants: nobody runs while somebody of another bell stands before him and lives; who begins has left the queue,
-- so that whoever comes after that finds room.
local token, ttl, seat, flags, ticket = ARGV[1], tonumber(ARGV[2]), ARGV[5], ARGV[6], ARGV[8]
local entry = bell .. seat

purge()
local permits, minted, metadata = lease_of(token)
if not permits then
  local owning = ticket ~= '' and redis.call('GET', KEYS[7])
  local duplicate = ticket ~= '' and is_over(KEYS[8], ticket)
  if not duplicate and owning and owning ~= ticket then duplicate = 'o' end
  local first = living(queue, 0)
  local in_turn = not first or bell_of(first) == bell
  if not duplicate and (free() < 1 or not in_turn) then
    local stands, rung = standing(KEYS[9], ARGV[7], entry, ARGV[10])
    if stands ~= 'f' then
      sit_down(queue, bell, seat, not has(flags, 'q'))
      be_seen(KEYS[9], entry, stands == 'w', rung)
      rung[#rung + 1] = wake(true, 0, entry)[1]
      local earliest = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
      return {0, earliest and math.max(0, earliest - NOW) or -2, unpack(rung)}
    end
    duplicate = 'f'
  end
  if duplicate then
    stand_up(queue, bell, seat, has(flags, 'l'))
    be_gone(KEYS[9], entry, false)
    return {2, duplicate, unpack(wake(true, 0))}
  end
  if ARGV[9] == 'k' then
    redis.call('SET', KEYS[7], ticket, 'PX', math.max(redis.call('PTTL', KEYS[7]), ttl))
  elseif owning then
    redis.call('DEL', KEYS[7])
  end
  permits, minted, metadata = 1, seal(fence, MICROSECONDS, ARGV[3]), ARGV[4]
end
keep(fence, ARGV[3])
hold(token, permits, minted, metadata, ttl)
stand_up(queue, bell, seat, has(flags, 'l'))
be_gone(KEYS[9], entry, true)
return {1, minted, redis.call('ZCARD', queue), 0}
