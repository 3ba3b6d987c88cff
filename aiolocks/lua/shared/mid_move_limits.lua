-- Limits while their slot moves: as permits, those that hold any stand in two keys, and both have to be on this node.
turns, value, everyone, queue, bell = HIDDEN, HIDDEN, HIDDEN, HIDDEN, HIDDEN
if is_here(holders) ~= is_here(leases) then return NOT_HERE end
