-- Takes the one permit from its holder, before all waiters.
-- If it is sent again with the token that already holds, it is the same grant with a new ttl.
--
-- KEYS  1 holders   2 leases   3 value   4 fence   5 queue   6 bell
-- ARGV  1 token   2 ttl, ms   3 retention of the fence, ms   4 metadata, JSON
-- Returns {1, fencing token, number of entries in the queue, the lease from which it was taken as
--      'token:fencing token:metadata' ('': none), bells rung…}
local token, ttl, lost = ARGV[1], tonumber(ARGV[2]), ''
local others = number_in(queue)
purge()
local permits, minted, metadata = lease_of(token)
if not permits then
  minted, metadata = mint(fence, MICROSECONDS, ARGV[3]), ARGV[4]
  for _, held in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
    local _, old_minted, old_metadata = lease_of(held)
    lost = held .. ':' .. old_minted .. ':' .. old_metadata
    leave_mark(held, token .. ':' .. minted .. ':' .. metadata, redis.call('ZSCORE', holders, held) - NOW)
    drop(held)
  end
end
keep(fence, ARGV[3])
hold(token, 1, minted, metadata, ttl)
return {1, minted, others, lost, unpack(wake(true, 0))}
