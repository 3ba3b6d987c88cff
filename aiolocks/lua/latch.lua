-- Latches.

--# latches
-- A latch: a count that goes down to 0, and is open then.
--
-- KEYS  1 latch   and of a step that counts   2 steps
-- ARGV  1 token ('' for one that only waits)   2 count that it is made with   3 ttl, ms
--
-- Invariants:
-- - latch is a hash: `made`, the count that it was made with; `left`; `opened`, when it was last opened (µs, rising; 0: never);
--   `tokens`, which versions read and write that know the last 32 steps, and others leave as it is;
-- - steps is as in shared/once: a step that is sent again changes nothing;
-- - each step that is not refused keeps the latch for its ttl from now on, never for less than it had;
-- - whoever waits knows the `opened` of its first answer: a later one lets it through, also if the latch was reset meanwhile.
local latch, steps, token, made, ttl = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])

local found = redis.call('HMGET', latch, 'made', 'left', 'opened', 'tokens')
local is_new = not (found[1] and found[2] and found[3] and found[4])
if is_new then
  if redis.call('HLEN', latch) > 0 then reject_foreign(latch) end
  found = {made, made, '0', ''}
end
local left, opened = tonumber(found[2]), found[3]

-- Writes what the latch is from now on.
local function put()
  redis.call('HSET', latch, 'made', found[1], 'left', whole(left), 'opened', opened, 'tokens', found[4])
  keep(latch, ttl)
end

--# latch_wait
-- Tells a waiter whether the latch is open, or was since it began to wait. Makes the latch if there is none.
--
-- KEYS  1 latch
-- ARGV  as in latches; 4 the `opened` of the first answer that this waiter had ('': it has none)
-- Returns {1 when it may go on else 0, what is left, opened, the server's time, microseconds}, or {-1, the count that it was
--          made with}
--
-- Invariant: while somebody waits, the latch lasts; also on a server that is out of memory, which allows PEXPIRE.
if found[1] ~= made then return {-1, found[1]} end
if is_new then put() else keep(latch, ttl) end
local through = left == 0 or (ARGV[4] ~= '' and tonumber(opened) > tonumber(ARGV[4]))
return {through and 1 or 0, left, opened, whole(MICROSECONDS)}

--# latch_count_down
-- Counts down, and opens the latch at 0. Sent again with its token, it changes nothing.
--
-- KEYS  1 latch   2 steps   3 news
-- ARGV  as in latches; 4 n   5 for how long the step is known, ms   6 how many are known at most
-- Returns {0, what is left[, news, when this step opened it]}, or {-1, the count that it was made with}
--
-- Invariant: the step that opens it writes news and deletes it: who waits hears the deletion. Nothing is below 0.
if found[1] ~= made then return {-1, found[1]} end
local counts = not is_known(steps, token)
local opens = counts and left > 0 and left <= tonumber(ARGV[4])
if counts then
  refuse_if_crowded(steps, ARGV[6])
  left = math.max(0, left - ARGV[4])
end
if opens then opened = whole(math.max(MICROSECONDS, opened + 1)) end
put()
if counts then know(steps, token, ARGV[5]) end
if not opens then return {0, left} end
redis.call('SET', KEYS[3], '', 'PX', 1000)
redis.call('DEL', KEYS[3])
return {0, 0, KEYS[3]}

--# latch_reset
-- Begins to count again, and lets no waiter through. Sent again with its token, it changes nothing.
--
-- KEYS  1 latch   2 steps
-- ARGV  as in latches; 4 from what it counts   5 for how long the step is known, ms   6 how many are known at most
-- Returns {0, what is left}, or {-1, the count that it was made with}
--
-- Invariant: `opened` stays: who has waited since before the latch was opened goes through all the same.
if found[1] ~= made then return {-1, found[1]} end
local counts = not is_known(steps, token)
if counts then
  refuse_if_crowded(steps, ARGV[6])
  left = tonumber(ARGV[4])
end
put()
if counts then know(steps, token, ARGV[5]) end
return {0, left}
