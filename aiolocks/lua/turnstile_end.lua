-- Ends the window that this token began; the window of another token stays as it is.
--
-- KEYS  1 places
-- ARGV  1 token
-- Returns {1 when it was ended, 0 when the window is not of this token (any more)}
--
-- Invariant: writes with DEL alone, so that it works on a server that is out of memory.
if redis.call('ZSCORE', KEYS[1], ARGV[1]) ~= '1' then return {0} end
redis.call('DEL', KEYS[1])
return {1}
