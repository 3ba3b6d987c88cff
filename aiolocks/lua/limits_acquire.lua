-- Takes a permit of each key of the line, or says how long the lease that ends first may last.
-- If it is sent again with a token that already holds, it is the same grant with a new ttl.
--
-- KEYS  1 holders   2 leases   3 turns   4 fence   5 queue of all   6 bell   7 queue of the line
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON   5 line   6 seat   7 flags: w will wait if
--       refused, q has a bell, l deletes it, h is told the holders of the full key if refused, b takes a seat only, for
--       others of its session go first
-- Returns {1, fencing token, number of entries in the queue of all, 0, bells rung…}
--      or {0, remaining ms (-1: no holder; -2: others go first)[, the holders], bells rung…}
--
-- Invariant: no waiter gets in before a living one of its line with another bell, nor takes permits of a call for others.
local token, ttl, line, seat, flags = ARGV[1], tonumber(ARGV[2]), ARGV[5], ARGV[6], ARGV[7]
local others, waits = number_in(everyone), has(flags, 'w')

-- The holders of that key, or of any, for a refusal: the server's time, microseconds; the key with its cap, or ''; and,
-- for each of the leases that end first, its token, the ms left, and the lease.
local function describe_holders(place)
  local found, key = {whole(MICROSECONDS), place or ''}, place and ',' .. string.match(place, '[^=]+') .. '='
  local ending = redis.call('ZRANGE', holders, 0, WALK - 1, 'WITHSCORES')
  for i = 1, #ending, 2 do
    local line_held = lease_of(ending[i]) or ''
    if #found < 2 + 3 * MOST_TOLD and (not key or string.find(',' .. line_held, key, 1, true)) then
      found[#found + 1], found[#found + 2] = ending[i], math.max(0, ending[i + 1] - NOW)
      found[#found + 1] = redis.call('HGET', leases, ending[i])
    end
  end
  return found
end

purge()
local held, minted, metadata = lease_of(token)
if not held then
  local behind = has(flags, 'b')
  local call, place = waits and not behind and find_call(bell, seat), full_key(line)
  local first = first_to_call(line)
  if not call and (behind or place or first and not (waits and bell_of(queue, first) == bell)) then
    if waits then
      rung[#rung + 1] = enqueue(queue, bell, seat, has(flags, 'q'))
      redis.call('ZADD', everyone, 'NX', whole(arrival(everyone)), bell .. seat)
      redis.call('PEXPIRE', everyone, QUEUE_TTL)
      let_line_wait(line, place)
    end
    local earliest = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
    local remaining = not place and -2 or earliest and math.max(0, earliest - NOW) or -1
    if has(flags, 'h') then return {0, remaining, describe_holders(place), unpack(rung)} end
    return {0, remaining, unpack(rung)}
  end
  if call then drop(call) end
  held, minted, metadata = line, mint(fence, MICROSECONDS, ARGV[3]), ARGV[4]
end
keep(fence, ARGV[3])
hold(token, held, minted, metadata, ttl)
dequeue(queue, bell, seat, has(flags, 'l'))
let_line_wait(held)
return {1, minted, others > 0 and redis.call('ZCARD', everyone) or 0, 0, unpack(rung)}
