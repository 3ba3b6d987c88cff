-- Permits while their slot moves: the token of a holder is in two keys. The step would take a token in only one of them
-- for lost, so both keys must be on this node.
queue, bell = HIDDEN, HIDDEN
if is_here(holders) ~= is_here(leases) then return NOT_HERE end
