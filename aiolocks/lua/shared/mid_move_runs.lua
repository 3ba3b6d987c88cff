-- Runs of a job while their slot moves. A run needs the keys of permits, with the limit, and the key that tells which token
-- runs its ticket.
queue, bell = HIDDEN, HIDDEN
local whole_lease = is_here(leases) and is_here(value) and (not run or is_here(run))
if is_here(holders) and not whole_lease or is_here(leases) and not is_here(holders) then return NOT_HERE end
