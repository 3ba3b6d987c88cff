-- Tickets of a job: which one owns its key, and which are over.
--
-- Invariants:
-- - a ticket is 'id.ttl, ms', and owner the one that makes duplicates of all others, for as long as that key lasts;
-- - over is a sorted set by when they are forgotten, ms, of tickets that are not to run any more: with a d before
--   those that were done, with an s before those whose place another one has taken.

-- d or s for a ticket that is over, or nil.
local function is_over(over, ticket)
  for _, mark in ipairs({'d', 's'}) do
    if tonumber(redis.call('ZSCORE', over, mark .. ticket) or 0) > NOW then return mark end
  end
end

local function ttl_of(ticket) return tonumber(string.match(ticket, '%d+$')) end

-- Writes with ZREMRANGEBYSCORE first, which a server out of memory allows, and what a script writes after it as well.
local function remember(over, mark, ticket)
  redis.call('ZREMRANGEBYSCORE', over, '-inf', NOW)
  redis.call('ZADD', over, whole(NOW + ttl_of(ticket)), mark .. ticket)
  keep(over, ttl_of(ticket))
end
