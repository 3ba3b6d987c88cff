"""The faults of servers that belong together: slots that move, nodes that die, hang and are cut off."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from .cluster import NODES, Cluster
from .excuses import Excused
from .faults import FAULTS, LISTENED, ON_DEMAND, RECONNECTED, RECOVERY, Sort
from .group import Group
from .kinds import SPREAD
from .schedule import Fault, Schedule
from .sentinel import SENTINELS, TOLD
from .server.cluster import slot_of
from .topology import Grouped

if TYPE_CHECKING:
    from .run import Run

SETTLED = 2.0 + LISTENED
"""Seconds in which everybody has asked again after a slot has moved: a fair queue may lose its order."""
PAUSED = 0.15
"""Seconds for which a node takes no writes before a slot leaves it in one step, at most."""
OF_PROCESSES = ("cut", "half cut", "half open", "black hole", "freeze", "kill")
TARGETS = {
    "cluster": (*NODES, "a0", "b0", "c0", "c0", "c1"),
    "sentinel": ("m0", "m0", "m0", "m1", *SENTINELS),
}
"""The targets of a fault of servers, with how often: most want a name of `c0`."""
OF_ONE_SERVER = ("no scripts", "out of memory")


def _group(run: Run) -> Group:
    assert isinstance(run.topology, Grouped)
    return run.topology.group


def _cluster(run: Run) -> Cluster:
    group = _group(run)
    assert isinstance(group, Cluster)
    return group


def _slot(run: Run, fault: Fault) -> int:
    """That of the name which lives on this node at first."""
    slots = map(slot_of, sorted({name.encode() for name in SPREAD}))
    return next(
        slot for slot in slots if _cluster(run).pair_at_first(slot) is _cluster(run).pair_of(fault.target)
    )


def _excuse_reconnecting(run: Run, fault: Fault) -> None:
    """With each fifth redirect, redis-py closes all connections of a cluster's client and learns the slots
    again. Over the serial transport, a renewal then takes as long as the first answer of a new session."""
    now, ttl = run.world.now, run.schedule.ttl
    for crew in run.schedule.crews:
        if crew.wakeup == "plain" and run.patience(crew) > ttl * 2 / 3:
            run.referee.excuses.give(Excused.ERROR, crew.part, now, now + fault.lasts + SETTLED)


def _excuse_unreached(run: Run, fault: Fault) -> None:
    """After an ASK, redis-py sends ASKING and the request over different connections. So over the plain
    transport, no renewal and no release reaches a key that has gone ahead of its slot."""
    until, ttl = run.world.now + fault.lasts + SETTLED, run.schedule.ttl
    for crew in run.schedule.crews:
        if crew.wakeup == "plain":
            run.referee.excuses.give(Excused.IDLE, None, run.world.now, until + ttl)
            if fault.lasts > ttl / 3:
                run.referee.excuses.give(Excused.ERROR, crew.part, run.world.now, until)


def _move(run: Run, fault: Fault) -> None:
    _excuse_reconnecting(run, fault)
    _excuse_unreached(run, fault)
    _cluster(run).move(_slot(run, fault), fault.lasts)


def _move_at_once(run: Run, fault: Fault) -> None:
    """It may be cancelled, as `amount` says. In its last moment, that would lose what the server has said.

    All who wait are told at once. A process that has no connection to the new node must make it, and that
    explains what is idle for as long as that takes, and no longer; with each move, once more.
    """
    _excuse_reconnecting(run, fault)
    now = run.world.now
    for crew in run.schedule.crews:
        connected = min(RECONNECTED, run.patience(crew))
        run.referee.excuses.give(Excused.IDLE, crew.part, now, now + fault.lasts + connected)
    _cluster(run).move_at_once(_slot(run, fault), fault.lasts, cancelled=bool(fault.amount))


def _hang(run: Run, fault: Fault) -> None:
    node = run.servers[fault.target]
    if not node.frozen:
        node.freeze()
        run.world.clockwork.after(fault.lasts, node.thaw)


def _die(run: Run, fault: Fault) -> None:
    """It comes back, with its data if `amount` says so."""
    group = _group(run)
    if not run.servers[fault.target].down:
        group.stop(fault.target)
        run.world.clockwork.after(fault.lasts, lambda: group.start(fault.target, keep=bool(fault.amount)))


def _cut_off(run: Run, fault: Fault) -> None:
    _group(run).cut_off(fault.target, fault.lasts)


def _fail_over(run: Run, fault: Fault) -> None:
    _group(run).fail_over(fault.target)


def _take_over(run: Run, fault: Fault) -> None:
    """A node of a cluster is told to take its master's place, whatever it has."""
    _cluster(run).take_over(fault.target)


def _replace(run: Run, fault: Fault) -> None:
    """The same; where waiters leave marks, those of a waiter that has just gone may stay for four polls."""
    if run.schedule.kind.spans:
        run.referee.excuses.give(Excused.IDLE, None, run.world.now, run.world.now + RECOVERY)
    _fail_over(run, fault)


def _lag(run: Run, fault: Fault) -> None:
    """A change of the master reaches its replica only later."""
    _group(run).pair_of(fault.target).stalled_until = run.world.now + fault.lasts


# A failover may lose what the last moments have brought; who is in doubt finds out within RECOVERY.
_FAILED = dict.fromkeys((Excused.ERROR, Excused.IDLE, Excused.PLACE, Excused.LEASE, Excused.RESULT), RECOVERY)
# Sessions hear of the new master, and leave the old one. The queue there may lack who came last.
_LEFT = {**_FAILED, Excused.ERROR: TOLD + SETTLED, Excused.IDLE: TOLD + SETTLED}
# A slot that moves costs no lease.
_MOVED = dict.fromkeys((Excused.UNANSWERED, Excused.IDLE, Excused.PLACE), SETTLED)
_MOVED_AT_ONCE = dict.fromkeys((Excused.UNANSWERED, Excused.PLACE), SETTLED)

FAILURES: dict[str, Sort] = {
    "hang": Sort(_hang, 3.0, of_server=True, excuses=_FAILED),
    "death": Sort(_die, 3.0, (0.0, 1.0, 1.0), of_server=True, excuses=_FAILED),
    "cut off": Sort(_cut_off, 3.0, of_server=True, excuses=_FAILED),
    "planned failover": Sort(_fail_over, of_server=True, excuses=_FAILED),
    "lag": Sort(_lag, 1.0, of_server=True, excuses=_FAILED),
}
ALONE: dict[str, Sort] = {
    "takeover": Sort(_take_over, of_server=True, excuses=_LEFT, leaves=False),
    "two masters": Sort(_replace, of_server=True, excuses=_LEFT, leaves=False),
}
"""A master that is well is replaced, and nothing else goes wrong: two may rely on one lease only until their
sessions have heard of it."""
MOVES: dict[str, Sort] = {
    "move": Sort(_move, 2.5, of_server=True, excuses=_MOVED, leaves=False),
    "move at once": Sort(
        _move_at_once, PAUSED, (0.0, 0.0, 0.0, 1.0), of_server=True, excuses=_MOVED_AT_ONCE, leaves=False
    ),
}
SORTS = {**FAULTS, **FAILURES, **ALONE, **MOVES, **ON_DEMAND}


def strike(rng: random.Random, schedule: Schedule) -> Schedule:
    """The schedule with some faults of servers and of processes.

    Slots move or nodes fail, not both: no tool that moves slots survives that.

    In one of four with Sentinel, a master is replaced that is well, and nothing else happens. Not where
    replicas must have each lease: there are none before the old master is one.
    """
    moves = schedule.kind.topology == "cluster" and rng.random() < 0.5
    if schedule.sorts:
        sorts = list(schedule.sorts)
    elif schedule.kind.topology == "sentinel" and rng.random() < 0.25 and not schedule.kind.replicas:
        sorts = ["two masters"]
    else:
        own = sorted(MOVES if moves else FAILURES)
        sorts = rng.sample(own, rng.choice((1, 1, 2, len(own))))
        sorts += rng.sample((*OF_PROCESSES, *OF_ONE_SERVER), rng.choice((0, 0, 1, 2)))
    faults = []
    for number in range(rng.choice((1, 2, 3, 5))):
        what = rng.choice(sorts)
        sort = SORTS[what]
        # A lease whose keys are on two nodes for two thirds of its ttl is lost, and was told so.
        longest = min(sort.longest, schedule.ttl / 3) if moves and schedule.kind.apart else sort.longest
        faults.append(
            Fault(
                part=f"f{number}",
                at=rng.choice((rng.uniform(0, 0.3), rng.uniform(0.1, 1.0), rng.uniform(0.1, 3.0))),
                lasts=longest * rng.choice((rng.random(), rng.random() ** 3)),
                what=what,
                target=rng.choice(schedule.crews).part
                if what in OF_PROCESSES
                else rng.choice(TARGETS[schedule.kind.topology]),
                amount=rng.choice(sort.amounts),
            )
        )
    return replace(schedule, faults=tuple(sorted(faults, key=lambda fault: fault.at)))
