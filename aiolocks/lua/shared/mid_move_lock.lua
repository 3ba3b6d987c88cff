-- A simple lock while its slot moves: its holder needs the lock key alone.
if KEYS[3] then KEYS[3] = HIDDEN end
KEYS[4] = nil
