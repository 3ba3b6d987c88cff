-- Every value that aiolocks writes has a known form. A value of another form was written by another program: no step
-- takes it for its own, and the step that meets it ends with 'FOREIGN' and the number of its key in KEYS.

local function reject_foreign(key)
  for number = 1, #KEYS do
    if KEYS[number] == key then error('FOREIGN ' .. number, 0) end
  end
end

-- Of a key with another type, the server does not say which one it is. Any other error is raised again.
local redis = {call = function(command, ...)
  local reply = redis.pcall(command, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if string.find(reply.err, 'WRONGTYPE', 1, true) then reject_foreign((...)) end
  return redis.call(command, ...)
end}

-- A nested token begins with its owner, which is as long; a token of nobody with as many zeros.
local function is_token(text) return #text % 32 == 0 and string.find(text, '^%x+$') ~= nil end

local function is_bell(entry) return string.find(entry, '.bell.', 1, true) ~= nil end

-- How many stand in a queue. To be read before anything is written.
local function number_in(queue)
  local number = redis.call('ZCARD', queue)
  if number > 0 and not is_bell(redis.call('ZRANGE', queue, 0, 0)[1]) then reject_foreign(queue) end
  return number
end
