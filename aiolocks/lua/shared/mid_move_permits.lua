-- Permits while their slot moves: those that hold any stand in two keys. A token in one of them only would be taken
-- for lost, so both have to be on this node.
queue, bell = HIDDEN, HIDDEN
if is_here(holders) ~= is_here(leases) then return NOT_HERE end
