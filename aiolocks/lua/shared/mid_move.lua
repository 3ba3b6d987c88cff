-- The frame of a holder's step while the slot of its name moves to another node. A cluster then refuses a script that
-- declares several keys unless all of them are on one node, and most keys of a name come and go. So the step declares one
-- key, which it cannot do without, and is sent to the node of this key. It uses the other keys if they are there, undeclared.
--
-- KEYS  1 the first key of the step
-- ARGV  1 n   2… the n keys of the step, then its arguments
--
-- Invariants:
-- - the step changes all that belongs to the lease or nothing: it answers NOT_HERE before its first write if a key that
--   the lease needs is not on this node;
-- - it creates no key, because the other node may have the same one;
-- - it leaves out the queue, because bells may be on the other node: the waiters ask again once the slot has moved.
local server, declared, given = redis, tonumber(ARGV[1]), {{}, {}}
for i = 2, #ARGV do table.insert(given[i <= declared + 1 and 1 or 2], ARGV[i]) end
local KEYS, ARGV = given[1], given[2]
local HIDDEN = ''  -- in the place of a key that the step leaves out
local NOT_HERE = {err = 'TRYAGAIN the slot is being moved: keys of this name are on two nodes'}
local IF_ABSENT = {
  DEL = 0, EXISTS = 0, HDEL = 0, HLEN = 0, PEXPIRE = 0, PTTL = -2, ZCARD = 0, ZREM = 0,
  GET = false, HGET = false, ZRANK = false, ZSCORE = false, HKEYS = {}, ZRANGE = {}, ZRANGEBYLEX = {}, ZRANGEBYSCORE = {},
}

-- For a key that is not there, the node that the slot leaves refuses a command, and the other node finds nothing: both are
-- answered as for an absent key.
local redis = {}
function redis.pcall(command, ...)
  local reply = (...) ~= HIDDEN and server.pcall(command, ...)
  local refused = type(reply) == 'table' and reply.err and string.find(reply.err, 'non local key', 1, true)
  if ((...) == HIDDEN or refused) and IF_ABSENT[command] ~= nil then return IF_ABSENT[command] end
  return reply
end
function redis.call(command, ...)
  local reply = redis.pcall(command, ...)
  if type(reply) == 'table' and reply.err then return server.call(command, ...) end
  return reply
end

local function is_here(key) return redis.call('EXISTS', key) == 1 end
