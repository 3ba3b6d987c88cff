-- Server time and fencing tokens.
--
-- Invariant: no fencing token that was granted under a name while its fence was kept is larger than the fence.
local TIME = redis.call('TIME')
local MICROSECONDS = TIME[1] * 1000000 + TIME[2]
local NOW = math.floor(MICROSECONDS / 1000)  -- ms

-- The larger of `minted` and the number after the fence. Minting begins with the server's time, so that after the loss
-- of a fence (restart, eviction) it does not begin again at 1. Microseconds since 1970 are exact in a double, that is
-- below 2^53, until 2255: no larger token was ever granted.
local function above(fence, minted)
  local last = redis.call('GET', fence) or '0'
  if not string.find(last, '^%d+$') or tonumber(last) >= 9007199254740991 then reject_foreign(fence) end
  return math.max(minted, last + 1)
end

-- The number as text. Only %.0f prints all its digits.
local function whole(number) return string.format('%.0f', number) end

-- Mints the next fencing token, `minted` or larger, and stores it in the fence for `ms`; the ttl never becomes shorter.
local function mint(fence, minted, ms)
  minted = whole(above(fence, minted))
  redis.call('SET', fence, minted, 'PX', math.max(redis.call('PTTL', fence), tonumber(ms)))
  return minted
end

-- Keeps a key for at least `ms` from now. This is always a write, and a server that is out of memory allows it: then
-- the server also allows all later writes of the script.
local function keep(key, ms)
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), tonumber(ms)))
end
