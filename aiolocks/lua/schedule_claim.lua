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
