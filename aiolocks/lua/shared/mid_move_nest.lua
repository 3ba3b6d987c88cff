-- A reentrant lock while its slot moves: its owner needs the lock key and the nest.
queue, bell = HIDDEN, nil
if held_by(owner_of(ARGV[1]), redis.call('GET', lock)) and not is_here(nest) then return NOT_HERE end
