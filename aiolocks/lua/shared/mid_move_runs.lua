-- Runs of a job while their slot moves: they are permits, with their number and the ticket that each of them runs.
queue, bell = HIDDEN, HIDDEN
local whole_lease = is_here(leases) and is_here(value) and (not run or is_here(run))
if is_here(holders) and not whole_lease or is_here(leases) and not is_here(holders) then return NOT_HERE end
