"""What can befall the processes, the network and the server of a schedule."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .network import NEVER
from .schedule import LONGEST_POLL, Fault, Schedule

if TYPE_CHECKING:
    from .run import Run

RECOVERY = 2.0 + 4 * LONGEST_POLL + 8.0
"""Seconds, and a ttl, in which all has settled after a fault: bells of the dead end, marks of waiters do
(after four polls), and where nothing was heard for 2 s, then for 4 s, there is a new connection."""
RECONNECTED = 2.0
"""Seconds in which a process has a new connection, and has asked again for all that it wants."""


@dataclass(frozen=True)
class Sort:
    """One sort of fault.

    Attributes:
        strike: Does it, and undoes it by itself after `lasts`.
        longest: The longest that it lasts, in seconds; 0 if it is over at once.
        amounts: What to draw its amount from.
        of_server: Whether it befalls the server; a process otherwise.
        settles: Seconds after which nothing is late or idle any more because of it.
        explains: Whether users may notice it at all.
    """

    strike: Callable[[Run, Fault], None]
    longest: float = 0.0
    amounts: tuple[float, ...] = (0.0,)
    of_server: bool = False
    settles: float = RECOVERY
    explains: bool = True


@dataclass(frozen=True)
class Strike:
    """What a fault explains: of its target, a process or a server, from then until all has settled."""

    target: str
    at: float
    until: float


def _cut(run: Run, fault: Fault) -> None:
    """The process is told at once; what it has sent arrives `amount` seconds late, and the end of it
    behind that."""
    for wire in run.wires_of(fault.target):
        wire.cut(late=fault.amount)


def _half_cut(run: Run, fault: Fault) -> None:
    """The process is told, the server never."""
    for wire in run.wires_of(fault.target):
        wire.cut(server_learns=NEVER, late=fault.amount)


def _half_open(run: Run, fault: Fault) -> None:
    """Nobody is told; what the process sends is lost."""
    for wire in run.wires_of(fault.target):
        wire.deaf = True


def _black_hole(run: Run, fault: Fault) -> None:
    for server in run.servers.values():
        run.world.network.block(fault.target, server.address, run.world.now + fault.lasts)


def _freeze(run: Run, fault: Fault) -> None:
    process = run.processes[fault.target]
    process.freeze()
    run.world.clockwork.after(fault.lasts, process.thaw)


def _kill(run: Run, fault: Fault) -> None:
    run.kill(fault.target, silently=bool(fault.amount))


def _freeze_server(run: Run, fault: Fault) -> None:
    server = run.servers[fault.target]
    if not server.frozen:
        server.freeze()
        run.world.clockwork.after(fault.lasts, server.thaw)


def _clock_back(run: Run, fault: Fault) -> None:
    run.servers[fault.target].set_clock(ahead=-fault.amount)


def _flush(run: Run, fault: Fault) -> None:
    run.void()
    run.servers[fault.target].server.empty()


def _restart(run: Run, fault: Fault) -> None:
    """It dies and comes back, with its data if `amount` says so."""
    server = run.servers[fault.target]
    if server.down:
        return
    keep = bool(fault.amount)
    server.stop()

    def back() -> None:
        if not keep:
            run.void()
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


FAULTS: dict[str, Sort] = {
    "cut": Sort(_cut, amounts=(0.0, 0.01, 0.1, 1.5), settles=RECONNECTED),
    "half cut": Sort(_half_cut, amounts=(0.0, 0.05, 0.5), settles=RECONNECTED),
    "half open": Sort(_half_open),
    "black hole": Sort(_black_hole, 4.0),
    "freeze": Sort(_freeze, 4.0),
    "kill": Sort(_kill, amounts=(0.0, 1.0)),
    "freeze of the server": Sort(_freeze_server, 3.0, of_server=True),
    "clock back": Sort(_clock_back, amounts=(0.1, 1.0, 5.0), of_server=True),
    "flush": Sort(_flush, of_server=True),
    "restart": Sort(_restart, 1.5, (0.0, 1.0), of_server=True),
    "no scripts": Sort(_forget_scripts, of_server=True, explains=False),
    "out of memory": Sort(_out_of_memory, 1.0, of_server=True),
    "read only": Sort(_read_only, 1.0, of_server=True),
    "loading": Sort(_loading, 1.0, of_server=True),
}


def strike(rng: random.Random, schedule: Schedule) -> Schedule:
    """The schedule with some faults, of some of their sorts."""
    sorts = rng.sample(sorted(FAULTS), rng.choice((1, 1, 2, 3, 5)))
    if "flush" in sorts or "restart" in sorts:
        # Who loses the fences and has the clock set back loses the order of fencing tokens, and was told so.
        sorts = [sort for sort in sorts if sort != "clock back"] or ["flush"]
    hosts = schedule.kind.hosts
    if len(hosts) > 1:
        # What a majority has granted is safe while a minority fails, and where none of it loses its data.
        sorts = [sort for sort in sorts if sort != "flush"] or ["restart"]
    faults = []
    for number in range(rng.choice((1, 2, 3, 5))):
        what = rng.choice(sorts)
        sort = FAULTS[what]
        faults.append(
            Fault(
                part=f"f{number}",
                at=rng.choice((rng.uniform(0, 0.2), rng.uniform(0.1, 1.0), rng.uniform(0.1, 3.0))),
                lasts=sort.longest * rng.choice((rng.random(), rng.random() ** 3)),
                what=what,
                target=hosts[0] if sort.of_server else rng.choice(schedule.crews).part,
                amount=sort.amounts[-1] if len(hosts) > 1 else rng.choice(sort.amounts),
            )
        )
    return replace(schedule, faults=tuple(sorted(faults, key=lambda fault: fault.at)))
