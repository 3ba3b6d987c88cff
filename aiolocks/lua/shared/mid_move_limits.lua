-- Limits while their slot moves: as with permits, the token of a holder is in two keys, and both must be on this node.
turns, value, everyone, queue, bell = HIDDEN, HIDDEN, HIDDEN, HIDDEN, HIDDEN
if is_here(holders) ~= is_here(leases) then return NOT_HERE end
