"""The faults of the processes, the network and the server of a schedule."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from aiolocks.transport.driver import CONNECT_TIMEOUT

from . import known
from .excuses import Excused
from .network import NEVER
from .node import ServerClock
from .schedule import LONGEST_POLL, Fault, Schedule

if TYPE_CHECKING:
    from .run import Run

RECOVERY = 2.0 + 4 * LONGEST_POLL + 8.0
"""Seconds, and a ttl, in which all has settled after a fault: bells of the dead end, marks of waiters do
(after four polls), and where nothing was heard for 2 s, then for 4 s, there is a new connection."""
RECONNECTED = 2.0
"""Seconds in which a process has a new connection, and has asked again for all that it wants."""
NOTICED = 2.0 + 4.0 + RECONNECTED
"""Seconds in which a process has noticed that its connection is silent, and that the next one is."""
NEVER_CONNECTED = 2 * CONNECT_TIMEOUT + RECONNECTED
"""The same where the first one is silent while it is made, and then the one on which a sentinel is asked."""
BELL_TTL = 2.0
"""Seconds for which the bell of a waiter lasts that shows no more that it lives."""
FAR_BELL_TTL = 5.0
"""The same of a waiter that is far from the front."""
LISTENED = 1.0
"""Seconds in which each session has asked whether its waiters have something to do, and they have done it."""
CACHED = 0.5
"""Seconds after which no session keeps what nobody uses, also if it hears nothing."""
MARKS = 4
"""So many polls of a waiter its marks last, if that is longer."""


@dataclass(frozen=True)
class Sort:
    """One sort of fault.

    Attributes:
        strike: Does it, and undoes it by itself after `lasts`.
        longest: The longest that it lasts, in seconds; 0 if it is over at once.
        amounts: The numbers from which its amount is drawn.
        of_server: Whether it befalls the server; a process otherwise.
        after_ttl: Whether it lasts for a ttl longer: until no lease is left.
        excuses: The excuse that it gives, and for how many seconds after its end: where it befalls a process,
            in that process; where a server, in all. Also what others find idle because of a process, for as
            long as that process may still be first in the queue.
        leaves: Whether leases may be left, of which nobody but their ttl frees the name.
    """

    strike: Callable[[Run, Fault], None]
    longest: float = 0.0
    amounts: tuple[float, ...] = (0.0,)
    of_server: bool = False
    after_ttl: bool = False
    excuses: Mapping[Excused, float] = field(default_factory=dict)
    leaves: bool = True

    def excuse(self, run: Run, fault: Fault) -> None:
        """Gives what it explains, and nothing else."""
        now, excuses, schedule = run.world.now, run.referee.excuses, run.schedule
        end = now + fault.lasts + fault.amount
        victim = None if self.of_server else fault.target
        # A connection of the serial transport is found silent only when a call on it is not answered.
        slow = any(crew.part == victim and crew.wakeup == "plain" for crew in schedule.crews)
        # An end by the server's clock comes later where that is set back.
        left = schedule.ttl + sum(one.amount for one in schedule.faults if one.what == "clock back")
        leaves = self.leaves or (fault.amount > 0 and _tries(run, victim))
        for sort, seconds in self.excuses.items():
            until = end + (RECOVERY if seconds == NEVER_CONNECTED and slow else seconds)
            until += left if leaves and sort is Excused.IDLE else 0.0
            excuses.give(sort, victim, now, until)
            if sort is Excused.IDLE and victim is not None:
                excuses.give(sort, None, now, min(until, now + _first_for(run, victim) + left))


def _tries(run: Run, process: str | None) -> bool:
    """Whether a single try is under way there.

    Its request may be sent again and be answered, and then arrive a first time, late, and be granted: by then
    its task has gone.
    """
    actors = None if process is None else run.actors.get(process)
    return actors is not None and any(one.single and one.ended > run.world.now for one in actors.attempts)


def _first_for(run: Run, process: str) -> float:
    """Seconds for which a process that does nothing any more may stay first in a queue."""
    schedule, since = run.schedule, run.world.now - RECONNECTED
    actors = run.actors.get(process)
    if actors is not None and all(attempt.ended < since for attempt in actors.attempts):
        return RECONNECTED  # none of its tasks waits, or did a moment ago
    poll = max((crew.poll for crew in schedule.crews if crew.part == process), default=0.0)
    bell = BELL_TTL if schedule.kind.near is None else FAR_BELL_TTL
    waits = max(bell, MARKS * poll) if schedule.kind.spans else bell
    return waits + LISTENED + RECONNECTED  # nobody is told of the end of a bell or a mark: a waiter finds it


def _cut(run: Run, fault: Fault) -> None:
    """The process is told at once; what it has sent arrives `amount` seconds late, and the end of it
    behind that."""
    for wire in run.wires_of(fault.target):
        wire.cut(late=fault.amount)


def _lose_answer(run: Run, fault: Fault) -> None:
    """The server does what the process asks for; its first answer is lost, for the connection breaks."""
    for wire in run.wires_of(fault.target):
        wire.breaks_until = run.world.now + fault.lasts


def _half_cut(run: Run, fault: Fault) -> None:
    """The process is told, the server never."""
    for wire in run.wires_of(fault.target):
        wire.cut(server_learns=NEVER, late=fault.amount)


def _half_open(run: Run, fault: Fault) -> None:
    """Nobody is told; what the process sends is lost."""
    for wire in run.wires_of(fault.target):
        wire.deaf = True


def _black_hole(run: Run, fault: Fault) -> None:
    for host in fault.servers or run.servers:
        run.world.network.block(fault.target, run.servers[host].address, run.world.now + fault.lasts)


def _freeze(run: Run, fault: Fault) -> None:
    process = run.processes[fault.target]
    process.freeze()
    run.world.clockwork.after(fault.lasts, process.thaw)


def _kill(run: Run, fault: Fault) -> None:
    run.kill(fault.target, silently=bool(fault.amount))


def _kill_behind(run: Run, fault: Fault) -> None:
    """Right behind the end of its next block that does not wait for the answer, in the same step."""
    run.behind[fault.target] = fault


def _freeze_server(run: Run, fault: Fault) -> None:
    server = run.servers[fault.target]
    if not server.frozen:
        server.freeze()
        run.world.clockwork.after(fault.lasts, server.thaw)


def _clock_back(run: Run, fault: Fault) -> None:
    run.servers[fault.target].set_clock(ahead=-fault.amount)


def _clock_ahead(run: Run, fault: Fault) -> None:
    """Leases end before their time."""
    run.void(run.servers[fault.target])
    run.servers[fault.target].set_clock(ahead=fault.amount)


def _flush(run: Run, fault: Fault) -> None:
    run.void(run.servers[fault.target])
    known.expect(run, run.servers[fault.target], fault.what)
    run.servers[fault.target].server.empty()


def _delete(run: Run, fault: Fault) -> None:
    """An operator deletes all that is held, with another client."""
    node = run.servers[fault.target]
    run.void(node)
    known.expect(run, node, fault.what)
    node.server.delete(
        lambda key: b"." not in key.partition(b"{")[0] or b".nest:" in key or b".leases:" in key
    )


def _restart(run: Run, fault: Fault, *, keep: bool = False, over: bool = False) -> None:
    """It dies and comes back, with its data if it is to `keep` them; all leases may be `over` by then."""
    server = run.servers[fault.target]
    if server.down:
        return
    server.stop()

    def back() -> None:
        if not (keep or over):
            run.void(server)
        server.start(keep=keep)

    run.world.clockwork.after(fault.lasts, back)


def _forget_scripts(run: Run, fault: Fault) -> None:
    run.servers[fault.target].server.scripts.clear()


def _out_of_memory(run: Run, fault: Fault) -> None:
    server = run.servers[fault.target].server
    server.configure("maxmemory", "1")
    run.world.clockwork.after(fault.lasts, server.configure, "maxmemory", "0")


def _read_only(run: Run, fault: Fault) -> None:
    server = run.servers[fault.target].server
    server.master = server
    run.world.clockwork.after(fault.lasts, setattr, server, "master", None)


def _loading(run: Run, fault: Fault) -> None:
    server = run.servers[fault.target].server
    server.loading = True
    run.world.clockwork.after(fault.lasts, setattr, server, "loading", False)


def _lose_pushes(run: Run, fault: Fault) -> None:
    """The server tells of bells, but of no lock that a session tracks."""
    tracking = run.servers[fault.target].server.tracking
    tracking.mute = True
    run.world.clockwork.after(fault.lasts, setattr, tracking, "mute", False)


# A request under way arrives late, is done twice or not at all; nobody is told of it for a while.
_LATE = dict.fromkeys((Excused.UNANSWERED, Excused.IDLE, Excused.RESULT), RECONNECTED)
# A process that no server hears.
_APART = dict.fromkeys((Excused.ERROR, Excused.IDLE, Excused.PLACE, Excused.RESULT), NEVER_CONNECTED)
_STOPPED = dict.fromkeys(Excused, RECONNECTED)
# A server that does not answer, or refuses. A waiter that was refused asks again with its next poll.
_AWAY = dict.fromkeys((Excused.ERROR, Excused.IDLE, Excused.PLACE, Excused.RESULT), RECONNECTED)
_AWAY[Excused.IDLE] += LONGEST_POLL
_EMPTY = {**_AWAY, Excused.LEASE: RECONNECTED}

FAULTS: dict[str, Sort] = {
    "cut": Sort(_cut, amounts=(0.0, 0.01, 0.1, 1.5), excuses=_LATE, leaves=False),
    "lost answer": Sort(_lose_answer, 0.5, excuses=_LATE, leaves=False),
    "half cut": Sort(_half_cut, amounts=(0.0, 0.05, 0.5), excuses=_LATE, leaves=False),
    "half open": Sort(_half_open, excuses=_APART),
    "black hole": Sort(_black_hole, 4.0, excuses=_APART),
    "freeze": Sort(_freeze, 4.0, excuses=_STOPPED, leaves=False),
    "kill": Sort(_kill, amounts=(0.0, 1.0), excuses=dict.fromkeys((Excused.IDLE, Excused.RESULT), RECOVERY)),
    "freeze of the server": Sort(_freeze_server, 3.0, of_server=True, excuses=_AWAY),
    "clock ahead": Sort(
        _clock_ahead,
        amounts=(0.1, 1.0, 5.0),
        of_server=True,
        excuses=_EMPTY,
    ),
    "clock back": Sort(
        _clock_back,
        amounts=(0.1, 1.0, 5.0),
        of_server=True,
        excuses=_LATE,
    ),
    "flush": Sort(_flush, of_server=True, excuses=_EMPTY),
    "restart": Sort(partial(_restart, keep=True), 1.5, of_server=True, excuses=_AWAY),
    "empty restart": Sort(_restart, 1.5, of_server=True, excuses=_EMPTY),
    "late restart": Sort(partial(_restart, over=True), 1.5, of_server=True, after_ttl=True, excuses=_AWAY),
    "no scripts": Sort(_forget_scripts, of_server=True),
    "out of memory": Sort(_out_of_memory, 1.0, of_server=True, leaves=False, excuses=_AWAY),
    "read only": Sort(_read_only, 1.0, of_server=True, excuses=_AWAY),
    "loading": Sort(_loading, 1.0, of_server=True, excuses=_AWAY),
}


# A lease that nobody uses ends after its time; one that is used is renewed within a third of its ttl.
_UNTOLD = {Excused.IDLE: CACHED, Excused.LEASE: RECONNECTED}
ON_DEMAND: dict[str, Sort] = {
    "deletion": Sort(_delete, of_server=True, excuses=_EMPTY),
    "lost pushes": Sort(_lose_pushes, 3.0, of_server=True, leaves=False, excuses=_UNTOLD),
    "kill behind": Sort(_kill_behind, excuses=dict.fromkeys((Excused.IDLE, Excused.RESULT), RECOVERY)),
}
"""Those that no schedule has that does not ask for them."""
EMPTYING = {"flush", "empty restart", "late restart"}
"""After these, a server begins with nothing."""


def strike(rng: random.Random, schedule: Schedule) -> Schedule:
    """The schedule with some faults, of some of their sorts."""
    sorts = list(schedule.sorts or schedule.kind.faults) or rng.sample(
        sorted(FAULTS), rng.choice((1, 1, 2, 3, 5))
    )
    hosts = schedule.kind.hosts
    several = len(hosts) > 1
    if EMPTYING.intersection(sorts):
        # A server that loses the fences begins at its clock. If that stands behind the clock that minted the
        # last fencing token, the order of fencing tokens is lost, as the docs say.
        behind = {"clock back", "clock ahead"} if several else {"clock back"}
        sorts = [sort for sort in sorts if sort not in behind]
        if several:
            schedule = replace(schedule, clocks=(ServerClock(),) * len(hosts))
    faults = []
    for number in range(rng.choice((1, 2, 3, 5)) + (rng.choice((0, 0, 1, 3)) if several else 0)):
        what = rng.choice(sorts)
        sort = FAULTS.get(what) or ON_DEMAND[what]
        cut_off = several and what == "black hole"
        faults.append(
            Fault(
                part=f"f{number}",
                at=rng.choice((rng.uniform(0, 0.2), rng.uniform(0.1, 1.0), rng.uniform(0.1, 3.0))),
                lasts=sort.longest * rng.choice((rng.random(), rng.random() ** 3))
                + (schedule.ttl * 1.01 if sort.after_ttl else 0.0),
                what=what,
                target=rng.choice(hosts) if sort.of_server else rng.choice(schedule.crews).part,
                amount=rng.choice(sort.amounts),
                servers=tuple(rng.sample(hosts, rng.randint(1, len(hosts)))) if cut_off else (),
            )
        )
    return replace(schedule, faults=tuple(sorted(faults, key=lambda fault: fault.at)))
