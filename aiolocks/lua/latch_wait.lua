-- Tells a waiter whether the latch is open, or was since it began to wait. Makes the latch if there is none.
--
-- KEYS  1 latch
-- ARGV  as in shared/latches; 4 the `opened` of the first answer that this waiter had ('': it has none)
-- Returns {1 when it may go on else 0, what is left, opened}, or {-1, the count that it was made with}
--
-- Invariant: while somebody waits, the latch lasts; also on a server that is out of memory, which allows PEXPIRE.
if found[1] ~= made then return {-1, found[1]} end
if is_new then put() else keep(latch, ttl) end
local through = left == 0 or (ARGV[4] ~= '' and tonumber(opened) > tonumber(ARGV[4]))
return {through and 1 or 0, left, opened}
