-- Says for each of these bells that its owner lives, and tells that owner for how long it need not ask.
-- It creates no bell or seat: a waiter whose bell or seat is gone is told so, and takes its seat again by itself.
-- A connection with tracking is told of changes to a key that it has read: so each bell is read after it was written. It
-- may be told of the other keys that are read, too: a waiter that listens ignores that. These keys are not in KEYS, for
-- some servers take one read for a read of all KEYS.
--
-- KEYS  bells
-- ARGV  1 ttl of a bell, ms   2 ttl of a queue, ms   3 host and process of the session, JSON ('': not told)
--       and then for each bell: its seat; its owner, whose locks are not in its way, or ''; the numbers of its queues, locks,
--       sets of deadlines, keys of marks, and keys beside them, which last as long as queues; the ttl of the marks, ms;
--       and all these keys
-- Returns for each bell: ms until the first lease ends that may be in its way, -1 when none has an end, -2 when its owner
-- must ask now, -3 when the bell was rung, -4 when bell or seat are gone, -5 when the server refuses what is done with
-- them, as where another program has written there, or where it takes no writes
--
-- Invariant: an error with one bell changes the answer for that bell only.
local at = 4
local function keys_of(number)
  local keys = {}
  for i = 1, tonumber(number) do
    keys[i] = ARGV[at]
    at = at + 1
  end
  return keys
end

local answers = {}
for i, bell in ipairs(KEYS) do
  local seat, owner, queues, locks, deadlines, marks, beside, ms = unpack(ARGV, at, at + 7)
  at = at + 8
  local ok, answer = pcall(
    listen, bell, seat, owner, keys_of(queues), keys_of(locks), keys_of(deadlines), keys_of(marks), keys_of(beside),
    tonumber(ms)
  )
  answers[i] = ok and answer or -5
end
return answers
