-- Says for each of these bells that its owner lives, and tells what that owner may wait for.
-- It creates nothing: a waiter whose bell or seat is gone is told so, and takes its seat again by itself.
-- Where changes to what was read are tracked, each bell is read after it was written. Other keys that are read may be
-- told of as well, which means nothing to a waiter that listens. It is not in KEYS, for some servers take a read for a
-- read of all of them.
--
-- KEYS  bells
-- ARGV  1 ttl of a bell, ms   2 ttl of a queue, ms   3 host and process of the session, JSON ('': they are not told)
--       and then of each bell its seat; its owner, whose locks are not in its way, or ''; how many queues, locks, sets of
--       deadlines, keys of marks and keys beside them, which last as long as queues, it has; the ttl of the marks, ms;
--       and all these keys
-- Returns for each bell: ms until the first lease ends that may be in its way, -1 when none has an end, -2 when its owner
-- is to ask now, -3 when the bell was rung, -4 when bell or seat are gone, -5 when another program has written there
--
-- Invariant: what is wrong with one of them is told of that one alone.
local at = 4
local function keys_of(number)
  local keys = {}
  for i = 1, tonumber(number) do
    keys[i] = ARGV[at]
    at = at + 1
  end
  return keys
end

local told = {}
for i, bell in ipairs(KEYS) do
  local seat, owner, queues, locks, deadlines, marks, beside, ms = unpack(ARGV, at, at + 7)
  at = at + 8
  local well, answer = pcall(
    listen, bell, seat, owner, keys_of(queues), keys_of(locks), keys_of(deadlines), keys_of(marks), keys_of(beside),
    tonumber(ms)
  )
  told[i] = well and answer or -5
end
return told
