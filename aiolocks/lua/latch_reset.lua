-- Begins to count again, and lets no waiter through. Sent again with its token, it changes nothing.
--
-- KEYS  1 latch
-- ARGV  as in shared/latches; 4 from what it counts
-- Returns {0, what is left}, or {-1, the count that it was made with}
--
-- Invariant: `opened` stays: who has waited since before the latch was opened goes through all the same.
if found[1] ~= made then return {-1, found[1]} end
if not is_known then left = tonumber(ARGV[4]) end
put()
return {0, left}
