-- The terms of a leadership while their slot moves: its leases are permits. The note waits for the next renewal.
queue, bell, terms, news = HIDDEN, HIDDEN, HIDDEN, HIDDEN
if is_here(holders) ~= is_here(leases) then return NOT_HERE end
