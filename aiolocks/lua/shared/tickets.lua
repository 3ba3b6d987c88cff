-- Tickets of a job: which one owns its key, and which are over.
--
-- Invariants:
-- - a ticket is 'id.ttl, ms', and owner the one that makes duplicates of all others that have not begun, for as long as
--   that key lasts;
-- - over is a sorted set by when they are forgotten, ms, of tickets that are not to run any more: with a d before
--   those that were done, with an s before those whose place another one has taken; with a b before them, of those
--   that gave up their key when they began; and, with an e before them, until when those own their key that keep it for
--   longer while they run;
-- - about is a hash from tickets to metadata, JSON: of the owner, and of those in `before`, which may have the key again.
--   It lasts for as long as the owner does, or longer;
-- - a ticket that gave up its key and was not done may run again, whichever ticket owns the key by then: nothing says
--   that the job of that one ever comes to a worker.

local function is_marked(over, mark, ticket)
  return tonumber(redis.call('ZSCORE', over, mark .. ticket) or 0) > NOW
end

-- The ticket that owns the key, or false.
local function owning_ticket(owner)
  local ticket = redis.call('GET', owner)
  if ticket and not string.find(ticket, '^' .. string.rep('[%w_-]', 22) .. '%.%d+$') then reject_foreign(owner) end
  return ticket
end

-- d or s for a ticket that is over, or nil.
local function is_over(over, ticket)
  for _, mark in ipairs({'d', 's'}) do
    if is_marked(over, mark, ticket) then return mark end
  end
end

local function ttl_of(ticket) return tonumber(string.match(ticket, '%d+$')) end

-- Writes with ZREMRANGEBYSCORE first, which a server out of memory allows, and what a script writes after it as well.
local function remember(over, mark, ticket)
  redis.call('ZREMRANGEBYSCORE', over, '-inf', NOW)
  redis.call('ZADD', over, whole(NOW + ttl_of(ticket)), mark .. ticket)
  keep(over, ttl_of(ticket))
end

-- Notes for how long it owns its key, before a run keeps it for longer; nothing if it does not.
local function note_end(over, ticket, left)
  redis.call('ZADD', over, 'NX', whole(NOW + left), 'e' .. ticket)
  keep(over, left)
end

-- Keeps the key of a ticket for at least that many ms, with its metadata.
local function keep_key(owner, about, ms)
  keep(owner, ms)
  keep(about, ms)
end

local function free_key(owner, about, ticket)
  redis.call('DEL', owner)
  redis.call('HDEL', about, ticket)
end

-- Why a ticket is not to run: d or s as above, o for one whose key another owns; or nil.
local function is_duplicate(owner, over, ticket)
  local owning = owning_ticket(owner)
  local owned_by_another = owning and owning ~= ticket and not is_marked(over, 'b', ticket)
  return is_over(over, ticket) or (owned_by_another and 'o')
end

-- Until when it owns its key, or 0 when that is over.
local function end_of(over, ticket)
  return tonumber(redis.call('ZSCORE', over, 'e' .. ticket) or 0)
end
