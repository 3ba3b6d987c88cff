-- Rate limits.

--# rate_log
-- The time, and the log, for all steps.
local TIME = redis.call('TIME')
local MICROSECONDS = TIME[1] * 1000000 + TIME[2]
local AHEAD = 20000  -- µs
local KNOWN, PART = 256, 64

-- Drops the oldest of the log that nobody asks for any more: a part at a time, and not in each step.
local function forget(log, length, keep)
  if length < KNOWN + PART or length % PART > 0 then return end
  local old = 0
  for _, entry in ipairs(redis.call('LRANGE', log, 0, PART - 1)) do
    if tonumber(string.match(entry, '%d+$')) > MICROSECONDS - keep * 1000 then break end
    old = old + 1
  end
  if old > 0 then redis.call('LTRIM', log, old, -1) end
end

--# ratelimit_straight
-- Before ratelimit_acquire: one request to one limit that has no waiters, without the functions for what follows.
--
-- Invariant: it does what ratelimit_acquire would do, or nothing. A value that is no bucket is for ratelimit_acquire to tell.
if #ARGV == 9 and ARGV[9] ~= '0' and (ARGV[1] == 'w' or ARGV[1] == '') then
  local interval, burst, n = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[9])
  local value, at, backlog = redis.pcall('GET', KEYS[1]), MICROSECONDS, 0
  if value then
    local of, most
    if type(value) == 'string' then
      at, of, most, backlog = string.match(value, '^(%d+) 0 0 (%S+) (%d+) (%S+) %S+$')
    end
    at = of == ARGV[6] and most == ARGV[7] and tonumber(at)
  end
  if at and at <= MICROSECONDS then
    backlog = math.max(0, backlog - (MICROSECONDS - at))
    local wait = math.max(0, math.ceil(backlog + (n - burst) * interval))
    local status = wait <= tonumber(ARGV[2]) and 1 or 0
    if status == 0 or wait <= AHEAD then
      if status == 1 then
        backlog = backlog + n * interval
        local ms = math.ceil(backlog / 1000)
        local entry = string.format('%s %s %.0f', ARGV[8], ARGV[9], MICROSECONDS + wait)
        local bucket = string.format('%.0f 0 0 %s %s %.17g =', MICROSECONDS, ARGV[6], ARGV[7], backlog)
        local length = redis.call('RPUSH', KEYS[2], entry)
        redis.call('PEXPIRE', KEYS[2], ms + ARGV[4])
        redis.call('SET', KEYS[1], bucket, 'PX', ms + ARGV[3])
        if length >= KNOWN + PART then forget(KEYS[2], length, ARGV[3]) end
      end
      return {status, wait, math.max(0, math.floor((burst * interval - backlog) / interval)), math.ceil(backlog), 0}
    end
  end
end

--# rates
-- What the steps of rate limits have in common. KEYS are four of each limit, in this order, and the bell at the end.
--
-- Under a name there are
--   bucket  string   'at queued mixed', and for each set of figures ' interval burst backlog rest':
--                    at: when a step wrote last, µs; queued: permits that all waiters together want; mixed: waiters that
--                    wait for several limits; interval: µs between two permits; burst: permits that a full bucket holds;
--                    backlog: µs from `at` until the bucket is full again; rest: µs from `at` until the set is dropped,
--                    or '=': the same
--   log     list     'token permits moment': what was admitted, in this order. A token with '+' before it: what its
--                    settlement has added. A token of zeros: the clock was set back, or the limit was reset
--   queue   zset     waiters in the order of asking: their bells, each with the token of its request after it
--   waits   hash     token -> 'permits own told limits': the moments (µs) at which this limit, and all limits of the
--                    request, would admit it, as its session was told last; and how many limits these are
--
-- Invariants:
-- - a session has one bell for its waiters of the same limits and figures. It is empty while it hangs, and 'rung' after they
--   were woken. If it is gone, they are dead. It ends with the last of them;
-- - only what is admitted is in a backlog. A waiter has a place in the queue and no more: if it leaves or dies, there is
--   nothing to give back, and all behind it have their moments earlier by what it wanted;
-- - a request is admitted by GCRA: the backlog before it plus what it wants is at most the burst. So no time of `per` has
--   more than burst + limit, by the server's clock, as long as that is not set ahead. A clock that was set back leaves the
--   backlog as it was; a clock that was set ahead empties it, which is a full bucket once;
-- - all sets of figures of a name count each request, and admit it together. A set is dropped when no request has brought it
--   for as long as its backlog was then. A request of more than the burst of another set waits for its bucket to be full;
-- - a request is admitted behind living waiters only if the permits for them all are there. If no waiter is before it, it is
--   admitted up to AHEAD before its moment, and sleeps for the rest: the way of the requests costs no permits. A waiter of
--   several limits that another limit holds up keeps its permits at the moment at which it was told to come, and only these;
-- - what was admitted is known by its token for at least `keep`, so that a request that is sent again is the same one. So
--   that it can be settled, the newest KNOWN are known for as long as the log lasts;
-- - interval is a multiple of 2^-k µs, rounded up, and the backlog of ten years is less than 2^53 of them. So all sums are
--   exact, and no time is lost or won but by the rounding of interval, less than a millionth.
local QUEUE_TTL, BELL_TTL = 10000, 2000  -- ms
local SEAT = 32  -- of an entry in the queue: its token
local WALK = 256  -- the most waiters of a queue that one step looks at
local EARLY = 5000  -- µs by which a waiter may come earlier before it is woken for that
local LONGEST = 315360000000000  -- µs, ten years
local BARRIER = string.rep('0', 32)

local function whole(number) return string.format('%.0f', number) end

-- The bucket whose keys begin at this one. `interval` and `burst`, texts, are the asker's figures; without them it has none.
local function bucket_at(first, interval, burst)
  local bucket = {
    key = KEYS[first], log = KEYS[first + 1], queue = KEYS[first + 2], waits = KEYS[first + 3],
    counted = 0, queued = 0, mixed = 0, sets = {}, pushed = {}, told = {}, seats = {}, left = {}, dropped = {}
  }
  local value = redis.call('GET', bucket.key)
  local gone = 0
  if value then
    local at, queued, mixed, sets = string.match(value, '^(%d+) (%d+) (%d+)(.*)$')
    if not at then reject_foreign(bucket.key) end
    bucket.counted, bucket.mixed, gone = tonumber(queued), tonumber(mixed), MICROSECONDS - at
    bucket.queued = bucket.counted
    bucket.back, gone = gone < 0, math.max(0, gone)
    for set_interval, set_burst, backlog, rest in string.gmatch(sets, '(%S+) (%d+) (%S+) (%S+)') do
      if rest == '=' then rest = backlog end
      local set = {
        text = set_interval .. ' ' .. set_burst, interval = tonumber(set_interval), burst = tonumber(set_burst),
        backlog = math.max(0, backlog - gone), rest = math.max(0, rest - gone)
      }
      local own = interval and set.text == interval .. ' ' .. burst
      if own then bucket.own = set end
      if own or set.rest > 0 then
        bucket.sets[#bucket.sets + 1] = set
      else
        bucket.dropped[#bucket.dropped + 1] = set.text
      end
    end
  end
  if interval and not bucket.own then
    bucket.own = {
      text = interval .. ' ' .. burst, interval = tonumber(interval), burst = tonumber(burst), backlog = 0, rest = 0
    }
    bucket.sets[#bucket.sets + 1] = bucket.own
  end
  return bucket
end

-- µs until all sets admit the last `n` of `total` permits, one after the other; may be negative.
local function wait_of(bucket, total, n)
  local wait = -math.huge
  for _, set in ipairs(bucket.sets) do
    wait = math.max(wait, set.backlog + (total - math.max(set.burst, n)) * set.interval)
  end
  return wait
end

-- The state of a bell: '' hangs, 'rung', or nil: its session is dead.
local states = {}
local function state_of(bell)
  if states[bell] == nil then states[bell] = redis.call('GET', bell) or false end
  return states[bell] or nil
end

-- Reads the first waiters of the queue. The dead ones leave it; those of the asker's session live.
local function walk(bucket, most, asker)
  local found = redis.call('ZRANGE', bucket.queue, 0, most - 1)
  local tokens, entries, sum, dead, mixed = {}, {}, 0, 0, 0
  for i, entry in ipairs(found) do tokens[i] = string.sub(entry, -SEAT) end
  local values = #found > 0 and redis.call('HMGET', bucket.waits, unpack(tokens)) or {}
  bucket.left, bucket.entries = {}, entries
  for i, entry in ipairs(found) do
    local bell = bell_in(bucket.queue, entry, SEAT)
    if not bell then reject_foreign(bucket.queue) end
    local n, own, told, limits = string.match(values[i] or '', '^(%d+) (%d+) (%d+) (%d+)$')
    if n and (bell == asker or state_of(bell)) then
      entries[#entries + 1] = {
        entry = entry, token = tokens[i], bell = bell, n = tonumber(n), own = tonumber(own), told = tonumber(told)
      }
      sum = sum + n
      if limits ~= '1' then mixed = mixed + 1 end
    else
      bucket.left[#bucket.left + 1] = entry
      dead = dead + (n or 0)
    end
  end
  bucket.all = #found < most
  bucket.queued = math.max(sum, bucket.counted - dead)
  if bucket.all then bucket.queued, bucket.mixed = sum, mixed end
  bucket.beyond = math.max(0, bucket.queued - sum)
end

-- The waiter with this token, if it is one of those that were read.
local function entry_of(bucket, token)
  for _, entry in ipairs(bucket.entries or {}) do
    if entry.token == token then return entry end
  end
end

-- µs until this limit admits the request in its turn, and whether a waiter is before it that was not admitted yet.
local function look(bucket, token, n)
  local before, held_up, found = 0, {}, false
  if bucket.entries then
    for _, entry in ipairs(bucket.entries) do
      found = entry.token == token
      if found then break end
      if not entry.gone then
        -- One that another limit holds up is not before it now, and has its permits at the moment that it was told.
        local others = entry.told > entry.own + 1000
        if others and entry.told - MICROSECONDS > wait_of(bucket, before + entry.n, entry.n) + 1000 then
          held_up[#held_up + 1] = entry
        else
          before = before + entry.n
        end
      end
    end
    if not found then before = before + bucket.beyond end
  else
    before = bucket.queued
  end
  local wait = math.max(0, wait_of(bucket, before + n, n))
  table.sort(held_up, function(one, other) return one.told < other.told end)
  for i = 1, #held_up do
    for _, set in ipairs(bucket.sets) do
      local full = math.max(set.backlog + before * set.interval, wait) + n * set.interval
      for j = 1, i do
        full = math.max(full, held_up[j].told - MICROSECONDS) + held_up[j].n * set.interval
      end
      if full > held_up[i].told - MICROSECONDS + math.max(set.burst, held_up[i].n) * set.interval then
        -- It would delay that waiter, and so it comes after it.
        wait = math.max(wait, full - math.max(set.burst, n) * set.interval)
      end
    end
  end
  return wait, before > 0
end

-- The permits and the moment of what was admitted with this token.
local function admitted(bucket, token)
  local last = -1
  while true do
    local part = redis.call('LRANGE', bucket.log, last - PART + 1, last)
    for i = #part, 1, -1 do
      local known, n, moment = string.match(part[i], '^(%x+) (%d+) (%d+)$')
      if known == token then return tonumber(n), tonumber(moment) end
    end
    if #part < PART then return nil end
    last = last - PART
  end
end

-- The first waiter of this bell, of those that were read.
local function first_of(bucket, bell)
  for _, entry in ipairs(bucket.entries or {}) do
    if entry.bell == bell and not entry.gone then return entry end
  end
end

local function take_out(bucket, entry, n, mixed)
  bucket.left[#bucket.left + 1] = entry
  bucket.queued = math.max(0, bucket.queued - n)
  if mixed then bucket.mixed = math.max(0, bucket.mixed - 1) end
end

-- The bell of the first waiter, if that can be admitted earlier than its session knows.
local function bell_to_ring(bucket)
  for _, entry in ipairs(bucket.entries or {}) do
    if not entry.gone then
      local moment = MICROSECONDS + math.max(0, wait_of(bucket, entry.n, entry.n))
      return moment < entry.own - EARLY and entry.bell or nil
    end
  end
end

-- A bell is rung without a moment at which it is not there: while its slot moves, a key that was deleted cannot be written.
local function ring(bell)
  redis.call('SET', bell, 'rung', 'KEEPTTL')
  redis.call('PERSIST', bell)  -- the event that a session with keyspace notifications hears
  redis.call('PEXPIRE', bell, BELL_TTL)
end

-- Writes what has changed; what deletes comes last. Returns the bell of a waiter that was woken, or, of the asker's session,
-- is to be woken.
local function write(bucket, keep, lasts, asker)
  local longest = 0
  local parts = {whole(MICROSECONDS), whole(bucket.queued), whole(bucket.mixed)}
  for _, set in ipairs(bucket.sets) do
    set.backlog = math.min(set.backlog, LONGEST)
    longest = math.max(longest, set.backlog + bucket.queued * set.interval)
    parts[#parts + 1] = string.format('%s %.17g %.0f', set.text, set.backlog, math.ceil(set.rest))
  end
  longest = math.ceil(math.min(longest, 2 * LONGEST) / 1000)
  local ms = whole(longest + keep)
  -- A step that only gives something up first makes a write that is allowed out of memory: then so are all others.
  if #bucket.pushed + #bucket.seats == 0 then redis.call('PEXPIRE', bucket.key, ms) end
  if bucket.back then bucket.pushed[#bucket.pushed + 1] = BARRIER .. ' 0 ' .. whole(MICROSECONDS) end
  for i, entry in pairs(bucket.changed or {}) do redis.call('LSET', bucket.log, i, entry) end
  local length = #bucket.pushed > 0 and redis.call('RPUSH', bucket.log, unpack(bucket.pushed)) or 0
  redis.call('SET', bucket.key, table.concat(parts, ' '), 'PX', ms)
  redis.call('PEXPIRE', bucket.log, whole(longest + lasts))
  if #bucket.told > 0 then
    redis.call('HSET', bucket.waits, unpack(bucket.told))
    if #bucket.seats > 0 then redis.call('ZADD', bucket.queue, unpack(bucket.seats)) end
    redis.call('PEXPIRE', bucket.waits, QUEUE_TTL)
    redis.call('PEXPIRE', bucket.queue, QUEUE_TTL)
  end
  local bell = bell_to_ring(bucket)
  if bell and bell ~= asker and states[bell] == '' then ring(bell) end
  forget(bucket.log, length, keep)
  if #bucket.left > 0 then
    local tokens = {}
    for i, entry in ipairs(bucket.left) do tokens[i] = string.sub(entry, -SEAT) end
    redis.call('ZREM', bucket.queue, unpack(bucket.left))
    redis.call('HDEL', bucket.waits, unpack(tokens))
  end
  return bell
end

-- What is told of a limit: how many more it would admit at once, and µs until its bucket is full.
local function tell(bucket, answer)
  local left = math.huge
  for _, set in ipairs(bucket.sets) do
    left = math.min(left, math.floor((set.burst * set.interval - set.backlog) / set.interval))
  end
  answer[#answer + 1] = math.max(0, left - bucket.queued)
  answer[#answer + 1] = math.ceil(bucket.own.backlog)
end

--# ratelimit_acquire
-- Admits requests of each limit, of all limits or of none; gives those that must wait a place; tells waiters their moments.
-- Sent again with the same tokens, it is the same: what was admitted is, and a place is kept.
--
-- KEYS  of each limit bucket, log, queue, waits; and the bell, which only waiters have
-- ARGV  1 letters: w it may take a place, p it is only asked, a it was asked before, c and has a place, h its
--       session lives, and hears its bell from now on, l its session knows of no others that wait   2 the longest wait, µs: a request
--       that would be admitted later is refused   3 keep, ms   4 ms for which the log lasts behind the backlog
--       5 number of limits
--       and then for each limit: µs between two permits, burst
--       and then for each request: its token, and how many permits of each limit it wants
-- Returns for each request 1 when admitted, 2 when it has a place, 3 when it has none any more and may take none, 0 when it
--         is refused; and µs until its moment;
--         then for each limit: how many more it would admit, µs until it is full;
--         then 1 when the bell hangs anew; and texts: the bell, if waiters of its session that were not asked for here come
--         earlier than it knows; of each limit with other figures than the asker's, 'b' for figures that
--         count beside it or 'd' for figures that count no more, the number of the limit, interval, burst;
--         't' and the token of the first waiter of its session in a queue, if that was not asked for here
local longest, keep, lasts, limits = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local bell = KEYS[4 * limits + 1]
local function has(letter) return string.find(ARGV[1], letter, 1, true) ~= nil end
local waits, asks, again, placed, hears = has('w'), has('p'), has('a'), has('c'), has('h')
local first, mixed = 6 + 2 * limits, limits > 1
local number = (#ARGV - first + 1) / (limits + 1)

local is_asked = {}
for i = 1, number do is_asked[ARGV[first + (i - 1) * (limits + 1)]] = true end
local buckets = {}
for l = 1, limits do
  local bucket = bucket_at(4 * l - 3, ARGV[4 + 2 * l], ARGV[5 + 2 * l])
  buckets[l] = bucket
  if bucket.queued > 0 or again then
    -- One look at the first waiters is enough where they are those that are asked for, or where a new request comes last.
    walk(bucket, again and (number > 0 and number or WALK) or 1, bell)
    local only = #bucket.left == 0
    for _, entry in ipairs(bucket.entries) do only = only and (not again or is_asked[entry.token]) end
    if not bucket.all and (not only or mixed or bucket.mixed > 0 or #bucket.entries == 0) then
      walk(bucket, WALK, bell)
    elseif not again and only and not bucket.all then
      bucket.entries = nil
    end
  end
end

local answer, changed, seated, woken = {}, false, false, {}
local over = has('l')
for i = 1, number do
  local at = first + (i - 1) * (limits + 1)
  local token = ARGV[at]
  local exact, ok, stands, moment, ahead = 0, true, false, nil, {}
  for l, bucket in ipairs(buckets) do
    local n = tonumber(ARGV[at + l])
    if n > 0 then
      local entry = entry_of(bucket, token)
      if entry or again and bell and redis.call('ZSCORE', bucket.queue, bell .. token) then stands = true end
      if again and not stands and not moment then
        local _, was = admitted(bucket, token)
        moment = was
      end
      local own, behind = look(bucket, token, n)
      ahead[l] = math.ceil(own)
      exact = math.max(exact, own)
      if own > (behind and 0 or AHEAD) then ok = false end
    end
  end
  local status, wait = 0, math.ceil(exact)
  if placed and not (stands or moment) then
    status = 3
  elseif moment and not stands then
    status, wait = 1, math.max(0, moment - MICROSECONDS)
  elseif not asks and wait <= longest and (ok or stands or waits) then
    status, changed = ok and 1 or 2, true
    for l, bucket in ipairs(buckets) do
      local n = tonumber(ARGV[at + l])
      local entry = n > 0 and entry_of(bucket, token)
      if n > 0 and ok then
        for _, set in ipairs(bucket.sets) do set.backlog = math.max(set.backlog, exact) + n * set.interval end
        bucket.pushed[#bucket.pushed + 1] = token .. ' ' .. ARGV[at + l] .. ' ' .. whole(MICROSECONDS + wait)
        if entry then entry.gone = true end
        if stands then take_out(bucket, bell .. token, n, mixed) end
      elseif n > 0 then
        local own, told = MICROSECONDS + ahead[l], MICROSECONDS + wait
        bucket.told[#bucket.told + 1] = token
        bucket.told[#bucket.told + 1] = table.concat({ARGV[at + l], whole(own), whole(told), limits}, ' ')
        if entry then
          entry.own, entry.told = own, told
        elseif not stands then
          if not bucket.since then
            redis.call('HLEN', bucket.waits)  -- read before it is written: it may have moved, and then nothing is written
            bucket.since = redis.call('ZRANGE', bucket.queue, -1, -1, 'WITHSCORES')[2] or 0
          end
          bucket.since = math.max(MICROSECONDS, bucket.since + 1)
          bucket.seats[#bucket.seats + 1] = whole(bucket.since)
          bucket.seats[#bucket.seats + 1] = bell .. token
          bucket.queued = bucket.queued + n
          if mixed then bucket.mixed = bucket.mixed + 1 end
          if bucket.entries then
            bucket.entries[#bucket.entries + 1] = {
              entry = bell .. token, token = token, bell = bell, n = n, own = own, told = told
            }
          end
        end
        seated = true
      end
    end
  end
  over = over and status == 1
  answer[#answer + 1], answer[#answer + 2] = status, wait
end

-- The bell ends with its last waiter: with the last one of all, or of those that its session knows and that are read here.
local empty = placed
for _, bucket in ipairs(buckets) do
  empty = empty and bucket.queued == 0
  over = over and not first_of(bucket, bell)
end
over = over or empty
local hangs = over or not hears and (placed or not seated) or redis.call('GET', bell) == ''
-- One that is left over from earlier waiters must last until its session asks next. While there are waiters, it does.
if hangs and seated and not placed and redis.call('PTTL', bell) < BELL_TTL / 2 then hangs = false end
for _, bucket in ipairs(buckets) do
  -- A request that is refused has used its figures, too; and a clock that was set back counts from now on.
  if changed or (not asks and (bucket.back or #bucket.sets > 1)) then
    bucket.own.rest = bucket.own.backlog
    woken[#woken + 1] = write(bucket, keep, lasts, bell)
  end
  tell(bucket, answer)
end
if not hangs then
  redis.call('SET', bell, '', 'PX', BELL_TTL)
elseif hears and not over then
  redis.call('PEXPIRE', bell, BELL_TTL)
end
if hears and not over then redis.call('GET', bell) end  -- a write ends the tracking of the bell, and a read begins it again
answer[#answer + 1] = hangs and 0 or 1
for l, bucket in ipairs(buckets) do
  for _, set in ipairs(bucket.sets) do
    if set ~= bucket.own then answer[#answer + 1] = 'b ' .. l .. ' ' .. set.text end
  end
  for _, text in ipairs(asks and {} or bucket.dropped) do answer[#answer + 1] = 'd ' .. l .. ' ' .. text end
  -- A master that lacks the last writes of another one has waiters that were admitted there, or have left. Their session
  -- lives, and so they would stay first for ever. It is told of them: only it knows who waits.
  local waiter = placed and first_of(bucket, bell)
  if waiter and not is_asked[waiter.token] then answer[#answer + 1] = 't ' .. waiter.token end
end
for _, one in ipairs(woken) do
  if one == bell then answer[#answer + 1] = bell end
end
if over then redis.call('DEL', bell) end
return answer

--# ratelimit_settle
-- Says how many permits a request has used; 0 for one that has left: then it gives its place up, too.
-- Sent again, or for a request that is not known (any more), it changes nothing.
--
-- KEYS  of each limit bucket, log, queue, waits; and the bell of its session
-- ARGV  1 token   2 keep, ms   3 ms for which the log lasts behind the backlog   4 number of limits
--       and then for each limit: µs between two permits, burst, how many permits
--       and then 1 if it has left, and its session knows of no others that wait; 2 if only its place is given up
-- Returns how many limits knew it; then for each limit: how many more it would admit, µs until it is full
--
-- Invariants:
-- - less: the backlog is what it would be if the request had wanted so many from the beginning. What was idle since then
--   stays so: a permit that is given back late is not there twice;
-- - more: the rest counts from now on.
local token, keep, lasts, limits = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local bell = KEYS[4 * limits + 1]

-- The log from its end to what was admitted with this token; nothing if that is not in it.
local function log_since(bucket)
  local found, last = {}, -1
  while true do
    local part = redis.call('LRANGE', bucket.log, last - PART + 1, last)
    for i = #part, 1, -1 do
      local more, known, n, moment = string.match(part[i], '^(%+?)(%x+) (%d+) (%d+)$')
      if not known then reject_foreign(bucket.log) end
      found[#found + 1] = {more = more, token = known, n = tonumber(n), moment = moment}
      if known == token and more == '' then return found end
    end
    if #part < PART then return {} end
    last = last - PART
  end
end

-- How many µs earlier a set can be full if the last `n` permits of this entry were not wanted: what was idle since stays so.
-- How much that was, is not known of the time before the clock was set back.
local function given_back(bucket, set, found, at, n)
  local full, idle = set.backlog, bucket.back and 0 or set.backlog
  for i = 1, at - 1 do
    full = full - found[i].n * set.interval
    idle = math.max(0, math.min(idle, full - (found[i].moment - MICROSECONDS)))
    if found[i].token == BARRIER then idle = 0 end
  end
  return math.min(n * set.interval, idle)
end

local last, only_place = ARGV[5 + 3 * limits] == '1', ARGV[5 + 3 * limits] == '2'
local knew, answer, buckets = 0, {0}, {}
for l = 1, limits do
  local bucket = bucket_at(4 * l - 3, ARGV[2 + 3 * l], ARGV[3 + 3 * l])
  local value = tonumber(ARGV[4 + 3 * l])
  buckets[l] = bucket
  bucket.waiting = redis.call('HGET', bucket.waits, token)
  if bucket.queued > 0 or bucket.waiting then
    walk(bucket, 2)
    if not bucket.all and (last or #bucket.left > 0 or bucket.mixed > 0) then walk(bucket, WALK) end
  end
  if bucket.waiting then
    knew, bucket.known = knew + 1, true
    local entry = entry_of(bucket, token)
    if entry then entry.gone = true end
    take_out(bucket, bell .. token, tonumber(string.match(bucket.waiting, '^%d+')) or 0, limits > 1)
  elseif not only_place then
    local found, total = log_since(bucket), 0
    for _, entry in ipairs(found) do
      if entry.token == token then total = total + entry.n end
    end
    if #found > 0 then knew = knew + 1 end
    local less = total - value
    if #found > 0 and less ~= 0 then bucket.known, bucket.changed = true, {} end
    if #found > 0 and less < 0 then
      bucket.pushed[1] = '+' .. token .. ' ' .. whole(-less) .. ' ' .. whole(MICROSECONDS)
      for _, set in ipairs(bucket.sets) do set.backlog = set.backlog - less * set.interval end
    end
    for at, entry in ipairs(found) do
      local n = entry.token == token and math.max(0, math.min(less, entry.n)) or 0
      if n > 0 then
        for _, set in ipairs(bucket.sets) do set.backlog = set.backlog - given_back(bucket, set, found, at, n) end
        less, entry.n = less - n, entry.n - n
        bucket.changed[-at] = entry.more .. token .. ' ' .. whole(entry.n) .. ' ' .. entry.moment
      end
    end
  end
end
answer[1] = knew
for _, bucket in ipairs(buckets) do
  if bucket.known then
    bucket.rung = write(bucket, keep, lasts)
  end
  tell(bucket, answer)
end
for _, bucket in ipairs(buckets) do answer[#answer + 1] = bucket.rung end
for _, bucket in ipairs(buckets) do last = last and not first_of(bucket, bell) end
if last then redis.call('DEL', bell) end
return answer

--# ratelimit_reset
-- Fills the bucket, for an operator. Who waits moves up.
--
-- KEYS  1 reservations of a former version   2 bucket   3 log   4 queue   5 waits
-- ARGV  as in forcing, which it does not need
-- Returns {1 when there was anything else 0, the bell that was rung}
local bucket = bucket_at(2)
local was = redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
if was == 0 then return {0} end
bucket.sets, bucket.back = {}, true
walk(bucket, WALK)
local bell
if bucket.queued > 0 then
  bell = write(bucket, QUEUE_TTL, QUEUE_TTL)
  redis.call('DEL', KEYS[1])
else
  redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
end
return {1, bell}
