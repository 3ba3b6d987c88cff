-- Counts down, and opens the latch at 0. Sent again with its token, it changes nothing.
--
-- KEYS  1 latch   2 news
-- ARGV  as in shared/latches; 4 n
-- Returns {0, what is left[, news, when this step opened it]}, or {-1, the count that it was made with}
--
-- Invariant: the step that opens it writes news and deletes it: who waits hears the deletion. Nothing is below 0.
if found[1] ~= made then return {-1, found[1]} end
local opens = not is_known and left > 0 and left <= tonumber(ARGV[4])
if not is_known then left = math.max(0, left - ARGV[4]) end
if opens then opened = whole(math.max(MICROSECONDS, opened + 1)) end
put()
if not opens then return {0, left} end
redis.call('SET', KEYS[2], '', 'PX', 1000)
redis.call('DEL', KEYS[2])
return {0, 0, KEYS[2]}
