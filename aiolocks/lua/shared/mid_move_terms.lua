-- The terms of a leadership while their slot moves: its leases are permits. A later renewal writes the term.
queue, bell, terms, news = HIDDEN, HIDDEN, HIDDEN, HIDDEN
if is_here(holders) ~= is_here(leases) then return NOT_HERE end
