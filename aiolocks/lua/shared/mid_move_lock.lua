-- A simple lock while its slot moves: all that its holder has is the lock key.
if KEYS[3] then KEYS[3] = HIDDEN end
KEYS[4] = nil
