-- A latch: a count that goes down to 0, and is open then.
--
-- KEYS  1 latch
-- ARGV  1 token ('' for one that only waits)   2 count that it is made with   3 ttl, ms
--
-- Invariants:
-- - latch is a hash: `made`, the count that it was made with; `left`; `opened`, when it was last opened (µs, rising; 0: never);
--   `tokens`, the last 32 steps that have changed it: a step that is sent again changes nothing;
-- - each step that is not refused keeps the latch for its ttl from now on, never for less than it had;
-- - whoever waits knows the `opened` of its first answer: a later one lets it through, also if the latch was reset meanwhile.
local latch, token, made, ttl = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local TOKENS = 32 * 33  -- characters: each token has a comma before it

local found = redis.call('HMGET', latch, 'made', 'left', 'opened', 'tokens')
local is_new = not (found[1] and found[2] and found[3] and found[4])
if is_new then
  if redis.call('HLEN', latch) > 0 then reject_foreign(latch) end
  found = {made, made, '0', ''}
end
local left, opened, tokens = tonumber(found[2]), found[3], found[4]
local is_known = token ~= '' and string.find(tokens, ',' .. token, 1, true) ~= nil

-- Writes what the latch is from now on.
local function put()
  redis.call('HSET', latch, 'made', found[1], 'left', whole(left), 'opened', opened, 'tokens',
    string.sub(tokens .. (is_known and '' or ',' .. token), -TOKENS))
  redis.call('PEXPIRE', latch, math.max(redis.call('PTTL', latch), ttl))
end
