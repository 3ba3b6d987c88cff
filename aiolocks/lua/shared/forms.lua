-- Every value that aiolocks writes has a known form. A value of another form is foreign: another program wrote it. No step
-- uses it, and the step that finds it ends with 'FOREIGN' and the number of its key in KEYS.

local function reject_foreign(key)
  for number = 1, #KEYS do
    if KEYS[number] == key then error('FOREIGN ' .. number, 0) end
  end
end

-- If a key has the wrong type, the server's error does not name the key: this call does. Any other error is raised again.
local redis = {call = function(command, ...)
  local reply = redis.pcall(command, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if string.find(reply.err, 'WRONGTYPE', 1, true) then reject_foreign((...)) end
  return redis.call(command, ...)
end}

-- A token has 32 characters. The token of a nest has its owner before it, a token without a holder zeros: also 32.
local function is_token(text) return #text % 32 == 0 and string.find(text, '^%x+$') ~= nil end

local function is_bell(entry) return string.find(entry, '.bell.', 1, true) ~= nil end

-- The number of entries in a queue. A step asks for it before its first write: if the queue is foreign, the step ends.
local function number_in(queue)
  local number = redis.call('ZCARD', queue)
  if number > 0 and not is_bell(redis.call('ZRANGE', queue, 0, 0)[1]) then reject_foreign(queue) end
  return number
end
