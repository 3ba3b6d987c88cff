-- Server time and fencing tokens.
--
-- Invariant: a fence is at least every fencing token that was granted under its name while it was kept.
local TIME = redis.call('TIME')
local MICROSECONDS = TIME[1] * 1000000 + TIME[2]
local NOW = math.floor(MICROSECONDS / 1000)  -- ms

-- The larger of `minted` and the one behind the fence. The server's clock is where minting begins, so that a
-- lost fence (restart, eviction) does not begin again at 1. Microseconds since 1970 are exact in a double, that is
-- below 2^53, until 2255: nothing beyond that was ever granted.
local function above(fence, minted)
  local last = redis.call('GET', fence) or '0'
  if not string.find(last, '^%d+$') or tonumber(last) >= 9007199254740991 then reject_foreign(fence) end
  return math.max(minted, last + 1)
end

-- Only %.0f prints it in full.
local function whole(number) return string.format('%.0f', number) end

-- Mints the next fencing token from `minted` on, and remembers it, for no shorter than before.
local function mint(fence, minted, ms)
  minted = whole(above(fence, minted))
  redis.call('SET', fence, minted, 'PX', math.max(redis.call('PTTL', fence), tonumber(ms)))
  return minted
end

-- Keeps a key for at least that many ms from now. Always a write, and one that a server out of memory allows: what
-- a script writes after it is allowed as well.
local function keep(key, ms)
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), tonumber(ms)))
end
