-- Tries commands out. Each is such that it writes nothing: it reads, removes what is not there, or has an
-- argument that the server refuses, after it has looked whether the user may say the command.
--
-- KEYS  1 a key that does not exist
-- ARGV  the commands, their words separated by spaces, KEY in the place of the key
-- Returns for each command the error that it met, or an empty string
local said = {}
for number, command in ipairs(ARGV) do
    local words = {}
    for word in string.gmatch(command, '%S+') do
        words[#words + 1] = word == 'KEY' and KEYS[1] or word
    end
    local reply = redis.pcall(unpack(words))
    said[number] = type(reply) == 'table' and reply.err or ''
end
return said
