-- Tickets of a job: which ticket owns the job's key, and which tickets are over.
--
-- Invariants:
-- - a ticket is 'id.ttl, ms'. Key owner holds the ticket that owns the job's key: while that key lasts, all other tickets
--   that have not begun are duplicates;
-- - over is a sorted set of tickets by the time when each is forgotten, ms, with a letter before each. Tickets that must not
--   run any more have a d if they were done, and an s if another ticket has taken their place. A ticket that gave up its
--   key when it began has a b. A ticket whose run keeps the key for longer has an e, until its own time with the key ends;
-- - about is a hash from tickets to metadata, JSON: of the owner, and of the tickets in `before`, which may own the key
--   again. It lasts for as long as the owner does, or longer;
-- - a ticket that gave up its key and was not done may run again, whichever ticket owns the key by then: the job of that
--   other ticket may never come to a worker.

local function is_listed(over, letter, ticket)
  return tonumber(redis.call('ZSCORE', over, letter .. ticket) or 0) > NOW
end

-- The ticket that owns the key, or false.
local function owning_ticket(owner)
  local ticket = redis.call('GET', owner)
  if ticket and not string.find(ticket, '^' .. string.rep('[%w_-]', 22) .. '%.%d+$') then reject_foreign(owner) end
  return ticket
end

-- Why a ticket is over: d or s; or nil if it is not.
local function why_over(over, ticket)
  for _, letter in ipairs({'d', 's'}) do
    if is_listed(over, letter, ticket) then return letter end
  end
end

local function ttl_of(ticket) return tonumber(string.match(ticket, '%d+$')) end

-- Writes with ZREMRANGEBYSCORE first: a server out of memory allows that, and then the later writes of the script as well.
local function remember(over, letter, ticket)
  redis.call('ZREMRANGEBYSCORE', over, '-inf', NOW)
  redis.call('ZADD', over, whole(NOW + ttl_of(ticket)), letter .. ticket)
  keep(over, ttl_of(ticket))
end

-- Notes when the ticket's own time with its key ends, before a run keeps the key for longer. Without a key, it notes nothing.
local function remember_end(over, ticket, left)
  redis.call('ZADD', over, 'NX', whole(NOW + left), 'e' .. ticket)
  keep(over, left)
end

-- Keeps the key of a ticket, and its metadata, for at least that many ms.
local function keep_key(owner, about, ms)
  keep(owner, ms)
  keep(about, ms)
end

local function free_key(owner, about, ticket)
  redis.call('DEL', owner)
  redis.call('HDEL', about, ticket)
end

-- Why a ticket must not run: d or s as above, o if another ticket owns its key; or nil.
local function why_duplicate(owner, over, ticket)
  local owning = owning_ticket(owner)
  local owned_by_another = owning and owning ~= ticket and not is_listed(over, 'b', ticket)
  return why_over(over, ticket) or (owned_by_another and 'o')
end

-- The end of the ticket's own time with its key as it was noted, or 0 if that was forgotten.
local function remembered_end(over, ticket)
  return tonumber(redis.call('ZSCORE', over, 'e' .. ticket) or 0)
end
