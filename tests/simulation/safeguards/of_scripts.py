"""Safeguards of the scripts, each as a piece of code that can be taken out."""

from __future__ import annotations

from .taking import FAIR, LOCKS, PERMITS, SPANS, Safeguard, lua

SEATING = ("reentrant_acquire", "multi_acquire", "flight_acquire")

OF_SCRIPTS: dict[str, Safeguard] = {
    # -- the scripts
    "lock_release: wakes": Safeguard(
        "A release wakes the first in the queue.",
        lua("lock_release", without="while ARGV[3] == '1' and not held do", instead="while false do"),
        LOCKS,
    ),
    "lock_renew: read last": Safeguard(
        "A renewal ends in a read, so that the server tells of what changes after it.",
        lua("lock_renew", without="redis.call('GET', KEYS[1]) and 1 or 0", instead="1"),
        LOCKS,
        faulty=True,
        sorts=("deletion",),
    ),
    "lock_release: token": Safeguard(
        "Only its holder frees a lock.",
        lua(
            "lock_release",
            without="if held and string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. ':' then",
            instead="if held then",
        ),
        LOCKS,
    ),
    "lock_release: leaves": Safeguard(
        "The last waiter of a session leaves the queue.",
        lua("lock_release", without="redis.call('ZREM', queue, bell)\n  redis.call('DEL', bell)"),
        LOCKS,
    ),
    "lock_acquire: same token": Safeguard(
        "An acquire that is sent again is the same grant.",
        lua(
            "lock_acquire",
            without="local mine = held and string.sub(held, 1, #token + 1) == token .. ':'",
            instead="local mine = false",
        ),
        LOCKS,
        faulty=True,
        sorts=("lost answer",),
    ),
    "lock_acquire: held": Safeguard(
        "A lock that is held is refused.",
        lua("lock_acquire", without="if held and not mine or", instead="if"),
        LOCKS,
    ),
    "lock_acquire: ttl": Safeguard(
        "A lock has a ttl.",
        lua("lock_acquire", without=" .. ARGV[4], 'PX', ttl)", instead=" .. ARGV[4])"),
        LOCKS,
    ),
    "lock_acquire: fence": Safeguard(
        "Fencing tokens rise also when the clock is set back.",
        lua(
            "lock_acquire",
            without="math.max(time[1] * 1000000 + time[2], last + 1)",
            instead="time[1] * 1000000 + time[2]",
        ),
        LOCKS,
        faulty=True,
    ),
    "lock_acquire: leaves": Safeguard(
        "A waiter that gets in leaves the queue, with its bell.",
        lua(
            "lock_acquire",
            without="if flags ~= FIRST_ASK and string.find(flags, 'l', 1, true) then",
            instead="if false then",
        ),
        LOCKS,
    ),
    "lock_renew: token": Safeguard(
        "A renewal finds out that another holder has the lock.",
        lua("lock_renew", without="string.sub(held, 1, #ARGV[1] + 1) ~= ARGV[1] .. ':'", instead="false"),
        LOCKS,
        faulty=True,
        sorts=("flush",),
    ),
    "lock_acquire: refused is seated": Safeguard(
        "A refusal gives a place in the queue.",
        lua("lock_acquire", without="redis.pcall('ZADD', queue, 'NX', whole(arrival), bell)"),
        LOCKS,
    ),
    "lock_acquire: its bell hangs": Safeguard(
        "The bell of one that is refused hangs.",
        lua("lock_acquire", without="if not hangs then redis.pcall('SET', bell, '', 'PX', BELL_TTL) end"),
        LOCKS,
    ),
    "lock_acquire: queue's ttl": Safeguard(
        "A queue has a ttl.",
        lua("lock_acquire", without="bell)\n  redis.pcall('PEXPIRE', queue, QUEUE_TTL)", instead="bell)"),
        LOCKS,
        covered_by="listen: queue's ttl",
    ),
    "seats: refused is seated": Safeguard(
        "A refusal gives a place in all the queues.",
        lua(*SEATING, without="pcall(redis.call, 'ZADD', queue, 'NX', whole(since), bell)"),
        ("reentrant", "multilock", "singleflight"),
    ),
    "seats: its bell hangs": Safeguard(
        "The bell of one that is refused hangs.",
        lua(*SEATING, without="pcall(redis.call, 'SET', bell, '', 'PX', BELL_TTL)"),
        ("reentrant", "multilock", "singleflight"),
    ),
    "queue: its ttl": Safeguard(
        "A queue has a ttl.",
        lua("permits_acquire", without="redis.call('PEXPIRE', queue, QUEUE_TTL)"),
        FAIR,
    ),
    "queue: seat": Safeguard(
        "A seat that there is stays where it is.",
        lua(
            "permits_acquire",
            without="'NX', whole(arrival(queue)), bell",
            instead="whole(arrival(queue)), bell",
        ),
        FAIR,
    ),
    "queue: a rung bell is told": Safeguard(
        "A session is told of its bell that was rung and hangs again.",
        lua("limits", "permits", without="(had_bell or state)", instead="had_bell"),
        ("limits", "cluster-limits", "fair-semaphore"),
    ),
    "listen: reads": Safeguard(
        "A bell is read again once it was written, so that its end is told.",
        lua(
            "waiters_listen",
            without="redis.call('PEXPIRE', bell, lasts)\n  redis.call('GET', bell)",
            instead="redis.call('PEXPIRE', bell, lasts)",
        ),
        ("lock", "rwlock"),
    ),
    "listen: bell's ttl": Safeguard(
        "A bell lives on for as long as its session listens.",
        lua("waiters_listen", without="redis.call('PEXPIRE', bell, lasts)"),
        ("lock", "fairlock"),
    ),
    "listen: queue's ttl": Safeguard(
        "A queue lives on for as long as somebody listens.",
        lua("waiters_listen", without="redis.call('PEXPIRE', queue, ARGV[2])"),
        ("fairlock",),
        covered_by="the safety poll",
    ),
    "listen: marks": Safeguard(
        "The marks of a waiter live on for as long as it listens.",
        lua("waiters_listen", without="redis.call('ZADD', marks[1], 'XX', whole(NOW + marks_ms), bell)"),
        ("rwlock", "rangelock"),
    ),
    "listen: nothing held": Safeguard(
        "Where nothing is held any more, a waiter is to ask.",
        lua("waiters_listen", without="or held == 0 and not awaits_other then", instead="then"),
        ("lock", "multilock"),
        faulty=True,
        sorts=("kill",),
    ),
    "listen: the dead": Safeguard(
        "Where the waiter before it has died, a waiter is to ask.",
        lua("waiters_listen", without="asks, rank = true, rank - 1", instead="rank = rank - 1"),
        ("fair-semaphore", "rwlock"),
        faulty=True,
        unseen="it could enter at once only where the dead one wanted more than was free; else the next "
        "release, which passes over the dead, wakes it",
        sorts=("kill",),
    ),
    "listen: first end": Safeguard(
        "A waiter is told when the first lease ends.",
        lua("waiters_listen", without="key, 0, 0, 'WITHSCORES'", instead="key, -1, -1, 'WITHSCORES'"),
        ("rwlock", "semaphore"),
        faulty=True,
        unseen="the next renewal of another holder finds what has ended, or the next poll",
    ),
    "queue: ring": Safeguard(
        "To ring deletes the bell, which is what is heard.",
        lua(
            "permits",
            "spans",
            without="redis.call('DEL', bell)\n  redis.call('SET', bell, 'rung'",
            instead="redis.call('SET', bell, 'rung'",
        ),
        ("rwlock", "semaphore", "fairlock"),
    ),
    "queue: rung stays": Safeguard(
        "A waiter that was woken is no dead one.",
        lua("permits", "spans", without="redis.call('SET', bell, 'rung', 'PX', BELL_TTL)"),
        ("fairlock", "rwlock", "semaphore"),
    ),
    "queue: the dead": Safeguard(
        "A dead waiter is passed over.",
        lua(
            "permits",
            "spans",
            without="if state then return entry, state end",
            instead="do return entry, state or '' end",
        ),
        ("fairlock", "rwlock"),
        faulty=True,
    ),
    "permits: purge": Safeguard(
        "A lease that has come to its end gives its permits back.",
        lua("permits", without="if is_token(token) then drop(token) end"),
        ("fairlock", "semaphore"),
        faulty=True,
    ),
    "permits: count": Safeguard(
        "No more permits than there are.",
        lua("permits_acquire", without="true, wanted > free(), has", instead="true, false, has"),
        PERMITS,
    ),
    "permits: in turn": Safeguard(
        "A strict queue lets nobody pass.",
        lua("permits_acquire", without="in_turn, ahead = goes_first(queue, bell, entry, has(flags, 'w'))"),
        FAIR,
    ),
    "permits: a hand-over out of turn wakes": Safeguard(
        "A waiter that is refused because others go first wakes the first of them.",
        lua(
            "permits_acquire",
            without="(not in_turn and not ahead) or (wakeup_due and not fair)",
            instead="wakeup_due and not fair",
        ),
        FAIR,
    ),
    "permits: refused is seated": Safeguard(
        "A refusal gives a seat.",
        lua(
            "permits_acquire",
            without="has(flags, 'w') and enqueue(queue, bell, seat, has(flags, 'q'))",
            instead="nil",
        ),
        PERMITS,
    ),
    "permits: passes the wakeup on": Safeguard(
        "A waiter that was woken and cannot use it wakes the next.",
        lua("permits_acquire", without="elseif woken and not fair then", instead="elseif false then"),
        ("semaphore",),
    ),
    "permits: wakes more": Safeguard(
        "If room is left after a grant, the next is woken.",
        lua(
            "permits_acquire",
            without="local rung = wake(fair, 0)\nlocal room",
            instead="local rung = {}\nlocal room",
        ),
        ("semaphore", "fair-semaphore"),
    ),
    "permits: release wakes": Safeguard(
        "A release wakes the next.",
        lua("permits_release", without="if has(ARGV[4], 'r') then rung = wake(ARGV[3] ~= NO_SEAT, 0) end"),
        PERMITS,
    ),
    "permits: gives up its seat": Safeguard(
        "A waiter that gives up leaves its seat.",
        lua("permits_release", without="dequeue(queue, bell, ARGV[3], has(ARGV[4], 'l'))"),
        FAIR,
    ),
    "spans: writers exclude": Safeguard(
        "Nobody enters where a writer is.",
        lua("spans", without="if overlapping('w', a, b) > 0 then return true end"),
        SPANS,
    ),
    "spans: readers exclude": Safeguard(
        "No writer enters where a reader is.",
        lua("spans", without="if mode == 'w' and overlapping('r', a, b) > 0 then return true end"),
        SPANS,
    ),
    "spans: reservations": Safeguard(
        "No reader passes a writer that waits.",
        lua(
            "spans",
            without="if mode == 'r' then return not passes and overlapping('p', a, b) > 0 end",
            instead="if mode == 'r' then return false end",
        ),
        ("rwlock",),
    ),
    "spans: turns": Safeguard(
        "A reader that has waited for a writer enters before the next.",
        lua(
            "spans",
            without="if mode == 'r' then return not passes and overlapping('p', a, b) > 0 end",
            instead="if mode == 'r' then return overlapping('p', a, b) > 0 end",
        ),
        ("rwlock",),
    ),
    "spans: order": Safeguard(
        "No writer and no upgradable passes one that has asked before it.",
        lua("spans", without="return not passes and is_behind(id, a, b)", instead="return false"),
        SPANS,
    ),
    "spans: order of calls": Safeguard(
        "Writers and upgradables are called in the order of asking.",
        lua("spans", without="behind = overlaps_any(ahead, a, b) or", instead="behind ="),
        SPANS,
    ),
    "spans: places": Safeguard(
        "A writer behind an upgradable keeps no reader out.",
        lua(
            "spans",
            without="or behind or overlapping('u', a, b) > 0 or overlapping('w', a, b) > 0 then",
            instead="or behind then",
        ),
        SPANS,
    ),
    "spans: places behind places": Safeguard(
        "A writer behind another waiter keeps no reader out.",
        lua("spans", without="or behind or overlapping('u'", instead="or overlapping('u'"),
        ("rangelock",),
    ),
    "spans: a called one's place": Safeguard(
        "A called upgradable is passed by no newcomer.",
        lua("spans", without="(side == 'q' and mode == 'u')", instead="false"),
        SPANS,
    ),
    "spans: the walk goes on": Safeguard(
        "Behind a writer that is called, waiters of other parts get their turns and reservations.",
        lua(
            "spans",
            without="if mode == 'w' and a == '-inf' and b == 'inf' then",
            instead="if mode == 'w' then",
        ),
        ("rangelock",),
    ),
    "spans: a lost place": Safeguard(
        "A writer that was taken for dead has lost its place.",
        lua(
            "spans",
            without="not redis.call('ZSCORE', queue, bell .. seat) then mark",
            instead="false then mark",
        ),
        SPANS,
        faulty=True,
        sorts=("freeze",),
    ),
    "spans: calls": Safeguard(
        "No upgrade passes a reader that was called.",
        lua("spans", without=" or overlapping('c', a, b) > 0"),
        SPANS,
    ),
    "spans: release wakes": Safeguard(
        "A release wakes those who may enter.",
        lua("spans_release", without="if has(ARGV[4], 'r') then rung = wake_waiters(0) end"),
        SPANS,
    ),
    "spans: marks go": Safeguard(
        "The reservation of a waiter goes with the waiter.",
        lua("spans_release", without="remove_waiter(bell, ARGV[3])"),
        SPANS,
    ),
    "spans: purge": Safeguard(
        "A lease that has come to its end is in nobody's way.",
        lua("spans", without="for _, token in ipairs(over) do", instead="for _, token in ipairs({}) do"),
        ("rwlock",),
        faulty=True,
    ),
    "multi: all or none": Safeguard(
        "Several locks are taken together or not at all.",
        lua("multi_acquire", without="elseif known(KEYS[i], held) then", instead="elseif false then"),
        ("multilock",),
    ),
    "multi: passes the wakeup on": Safeguard(
        "A waiter that was woken for one and lacks another wakes the next.",
        lua(
            "multi_acquire",
            without="pass_wakeup_on(free, bell, rung, has(flags, 'q') and not has(flags, 'o'))",
        ),
        ("multilock",),
        covered_by="listen: nothing held",
    ),
    "multi: release wakes": Safeguard(
        "A release wakes the next for each name.",
        lua(
            "multi_release",
            without="if not held and ARGV[4] == '1' then rung[#rung + 1] = wake(KEYS[2 * n + i]) end",
        ),
        ("multilock",),
    ),
}
