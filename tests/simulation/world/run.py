"""One schedule, from its beginning to its end, and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Self

from aiolocks import Backoff, Session
from aiolocks.lock import wakeups
from tests.support.hygiene import is_fence

from . import limited
from .actors import Actors
from .caches import CACHES, ENDED, Answers, eager
from .checkers import Attempt, Referee
from .excuses import Excused
from .failures import ALONE, FAILURES, SORTS
from .faults import EMPTYING, MARKS, NOTICED, RECOVERY
from .known import TURNS
from .network import Wire
from .node import Node
from .passing import Passing
from .process import Process
from .randomness import Source, seeded
from .schedule import LONGEST_POLL, Crew, Fault, Round, Schedule
from .topology import TOPOLOGIES, BehindSentinel
from .unconfirmed import OwnReleases
from .wants import Kind
from .works import Ledger
from .world import StuckError, World

IDLE = 1.0
"""Seconds for which something may be free while somebody waits for it, at most: far less than a poll."""
HANDED_OVER = 15
"""How often bytes may travel until the next one has it: a wakeup may come to one that cannot use it."""
CONNECTED = 20
"""How often bytes must travel until a new session has its first answer, at most."""
LIMIT = 600.0
"""Seconds, of the world, that a schedule may take."""
QUEUE_TTL = 10.0
"""Seconds that a queue outlives who stood in it."""
SLACK = 1.1
"""Seconds that keys outlast what stands in them and was not let go of."""
AFTERWARDS = 1.0
"""Seconds in which what is under way arrives when everybody has gone."""


@dataclass(frozen=True)
class Outcome:
    """The result of a schedule.

    Attributes:
        violations: The violations; empty if all is well.
        overlaps: Two holders, as may be where a server has lost what it had.
        trace: The events; made into text when somebody reads it.
        known_after: For each loss that a server has told of, seconds until the body of its holder ended.
        lasted: Seconds of the world.
        steps: Turns of loops, and requests that servers have answered.
    """

    schedule: Schedule
    violations: tuple[str, ...]
    overlaps: tuple[str, ...]
    trace: Any
    lasted: float
    steps: int
    known_after: tuple[tuple[Crew, float], ...] = ()

    @property
    def failed(self) -> bool:
        return bool(self.violations)


class Run:
    """One schedule in its world."""

    def __init__(self, schedule: Schedule, source: Source) -> None:
        self.schedule = schedule
        self.world = world = World(f"{schedule.kind}/{schedule.seed}", source)
        self.referee = Referee(world.clockwork, schedule.kind, world.trace.happened)
        self.referee.renewed_within = schedule.ttl / 2
        self.topology = TOPOLOGIES[schedule.kind.topology](world, schedule, self.lose)
        self.servers = self.topology.servers
        for server in self.servers.values():
            server.server.configure("notify-keyspace-events", "KA")
            server.on_request = self._look_for_what_stays
            if schedule.kind.spans and schedule.kind.topology == "one":
                server.on_step = Passing(self.referee.wrong).executed
        travels = map(self.patience, schedule.crews)
        travel = max(travels, default=0.0)  # one that is being made smaller may have nobody left
        trip = max(map(self._trip, schedule.crews), default=0.0)
        parts = map(world.clockwork.part, ("ledger", "rings", "graces"))
        serial = frozenset(crew.part for crew in schedule.crews if crew.wakeup == "plain")
        self.ledger = Ledger(self.referee, *parts, travel=travel, trip=trip, serial=serial)
        self.ledger.combined.all_hear = all(crew.hears for crew in schedule.crews)
        self.actors: dict[str, Actors] = {}
        self.processes: dict[str, Process] = {}
        self.mains: dict[str, asyncio.Task[None]] = {}
        self.behind: dict[str, Fault] = {}  # by process: that kills it right behind its next block
        self._living: set[str] = set()
        self._struck: set[str] = set()  # processes and servers of which a fault explains something
        self._calm_at = 0.0  # the faults are over then
        self._settled_at = 0.0  # and so is all that came of them

    def run(self) -> Outcome:
        world, referee = self.world, self.referee
        for crew in self.schedule.crews:
            process = self.processes[crew.part] = world.process(
                crew.part, delays=crew.delays, rate=crew.rate, busy=crew.busy
            )
            self.mains[crew.part] = main = process.start(self._live(crew), crew.part)
            main.add_done_callback(partial(self._ended, crew.part))
            self._living.add(crew.part)
            self._excuse_connecting(crew)
        for fault in self.schedule.faults:
            world.clockwork.at(fault.at, self._strike, fault)
        try:
            world.run(lambda: not self._living, limit=LIMIT)
            for name, main in self.mains.items():
                if main.done() and not main.cancelled() and (error := main.exception()) is not None:
                    referee.wrong(f"{name}: {error!r}")
            self._look_around()
        except StuckError as error:
            waiting = ", ".join(attempt.who for attempt in referee.waiting)
            referee.wrong(f"no end: {error}" + (f"; {waiting} wait" if waiting else ""))
        outcome = Outcome(
            self.schedule,
            tuple(dict.fromkeys(referee.violations)),
            tuple(referee.overlaps),
            world.trace.taken(),
            world.now,
            world.steps,
            tuple(referee.known_after),
        )
        world.dispose()
        return outcome

    def _look_for_what_stays(self, node: Node) -> None:
        """No key is without a ttl, after any request."""
        for store in node.server.stores.values():
            if len(store.ends) < len(store.values):
                for key in sorted(store.values.keys() - store.ends.keys()):
                    if not self._may_stay(key.decode()):
                        self.referee.wrong(f"without a ttl: {key.decode()}")
        if self.schedule.kind.steals:
            self.referee.thefts.look(self, node)

    def _may_stay(self, key: str) -> bool:
        """Keys without an end, and those that the dead leave of a queue for ten minutes."""
        lasting = self.schedule.kind.lasting
        return (bool(lasting) and lasting in key) or (self._may_be_remembered and ".seen:" in key)

    def _outlasts(self, key: str) -> bool:
        """Keys that have an end, but outlast the world."""
        return any(part in key for part in self.schedule.kind.remembered)

    @property
    def _may_be_remembered(self) -> bool:
        """Whether somebody has died or lost what it had: a job remembers for ten minutes who asked for it."""
        excuses = self.referee.excuses
        return bool(self.ledger.dead or excuses.begun(Excused.PLACE) or excuses.begun(Excused.LEASE))

    @property
    def _replaced(self) -> bool:
        """Whether all that befalls the schedule is that a master is replaced that is well."""
        return bool(self.schedule.faults) and all(fault.what in ALONE for fault in self.schedule.faults)

    def _ended(self, name: str, _: object) -> None:
        self._living.discard(name)
        if self._replaced:  # who has ended sends no release again that the new master has not got
            self.referee.excuses.give(Excused.IDLE, None, self.world.now, self.world.now + self.schedule.ttl)
        self.world.clockwork.after(AFTERWARDS, self._look_for_bells_of, name)

    def _look_for_bells_of(self, name: str) -> None:
        """A process that has ended, and that no fault has touched, leaves none of its bells, whatever befell
        others."""
        if self.schedule.hasty or not self._struck.isdisjoint((name, *self.servers)):
            return
        own = self.world.trace.bells_of(name)
        for server in self.servers.values():
            server.server.sweep()
            for store in server.server.stores.values():
                for key in own.intersection(store.present()):
                    self.referee.wrong(f"left behind: {key.decode()} of {name}")

    # -- what befalls it

    def _excuse_connecting(self, crew: Crew) -> None:
        """Over several slots of a cluster, a new session with the serial transport makes its connections one
        after the other, between the steps of its first acquire. With a ttl of less than some dozens of round
        trips, which the docs advise against, that takes longer than a ttl: a wait without a time-out ends, or
        a lease comes with little time left, and others wait for what was taken in vain.

        It explains what begins so early, and no more. A rare spike does not make all of it late.
        """
        ttl, takes = self.schedule.ttl, self._connects_late(crew)
        if takes and self.schedule.kind.stepwise:
            first = min((worker.rounds[0].after for worker in crew.workers), default=0.0)
            self.referee.excuses.give(Excused.ERROR, crew.part, 0.0, first + takes - ttl)
            self.referee.excuses.give(Excused.IDLE, None, 0.0, first + takes)

    def _connects_late(self, crew: Crew) -> float:
        """Seconds in which a cluster is connected to, where that is longer than a ttl.

        The serial transport may have to connect, and RESP2 takes two connections to each node.
        """
        connections = 2 if crew.wakeup == "resp2" else 1
        takes = connections * CONNECTED * self.topology.distance * (crew.delays.most + crew.busy)
        late = crew.wakeup in ("plain", "resp2") and self.schedule.kind.topology == "cluster"
        return takes if late and takes > self.schedule.ttl else 0.0

    def _excuse_connecting_again(self, process: str) -> None:
        """Where connections that were cut are made again so slowly, a renewal may come late."""
        now = self.world.now
        for crew in self.schedule.crews:
            if crew.part == process and (takes := self._connects_late(crew)):
                self.referee.excuses.give(Excused.ERROR, process, now, now + takes)

    def _strike(self, fault: Fault) -> None:
        process = self.processes.get(fault.target)
        if (process is not None and (process.dead or process.frozen)) or fault.target not in self._targets:
            return
        self.world.trace.happened(fault.target, f"FAULT {fault.what} ({fault.lasts:.3f} s, {fault.amount:g})")
        self._calm_at = max(self._calm_at, self.world.now + fault.lasts)
        self._settled_at = self._calm_at + RECOVERY + fault.amount + self.schedule.ttl
        sort = SORTS[fault.what]
        sort.excuse(self, fault)
        self._excuse_connecting_again(fault.target)
        if sort.excuses:
            self._struck.add(fault.target)
        if fault.what in EMPTYING or fault.what in {*FAILURES, *ALONE}:  # a failover may lose what came last
            self.ledger.combined.emptied()
        if fault.what == "clock ahead":
            self.ledger.combined.set_ahead(fault.amount)
        sort.strike(self, fault)

    @property
    def _targets(self) -> set[str]:
        return {*self.servers, *self.processes}

    def wires_of(self, process: str) -> list[Wire]:
        """The connections of a process."""
        return [wire for wire in self.world.network.wires if wire.process == process]

    def kill(self, name: str, *, silently: bool) -> None:
        """Ends a process between two of its steps."""
        self._living.discard(name)  # its task is never stepped again, and may not have told of its end
        self.processes[name].kill(silently=silently)
        self.ledger.died(name)
        for attempt in self.actors[name].attempts if name in self.actors else ():
            self.referee.died(attempt, self.schedule.ttl)

    def left_block(self, crew: Crew, attempt: Attempt) -> bool:
        """A task has left a block without the answer to the release; whether that was the last of its
        process."""
        fault = self.behind.pop(crew.part, None)
        if fault is None:
            return False
        self.world.trace.happened(crew.part, "is killed behind a block")
        SORTS[fault.what].excuse(self, fault)
        self._settled_at = max(self._settled_at, self.world.now + RECOVERY + self.schedule.ttl)
        self.kill(crew.part, silently=False)
        # Other tasks of the process may still have their step in this turn of its loop: they ask in vain, and
        # what they were given ends with its ttl.
        died, own, ttl = self.referee.died, self.actors[crew.part].attempts, self.schedule.ttl
        self.world.clockwork.after(0.0, lambda: [died(one, ttl) for one in own])
        # The connection is there, and the server knows each script whose text was sent on it.
        if crew.wakeup != "plain" and {one.what for one in self.schedule.faults} == {fault.what}:
            self.world.clockwork.after(crew.delays.longest, self._look_for, attempt)
        return True

    def _look_for(self, attempt: Attempt) -> None:
        """Its process was killed behind its block: what it had written has arrived."""
        for node in self.world.nodes:
            for store in node.server.stores.values():
                if any(attempt.token in repr(value) for value in store.values.values()):
                    self.referee.wrong(f"{attempt.who} was killed behind its block, and its lease is there")

    def void(self, node: Node) -> None:
        """The server loses what it has: of that, nothing more is promised but the fencing."""
        values = [value for store in node.server.stores.values() for value in store.values.values()]
        stored = " ".join(repr(getattr(value, "order", value)) for value in values)
        until = self.world.now + self.noticed_within()
        self.referee.lost.append((until, stored))
        self.world.clockwork.at(until, self.referee.exclude)

    def noticed_within(self) -> float:
        """Seconds in which a holder finds out that the server has lost its lease: with its next renewal, or
        where that may not get through, with the end of its lease."""
        ttl, now = self.schedule.ttl, self.world.now
        soon = ttl / 2 + self.ledger.travel
        for fault in self.schedule.faults:
            end = fault.at + fault.lasts + fault.amount + NOTICED
            if fault.what not in ("flush", "no scripts", "kill") and fault.at < now + soon and now < end:
                return ttl + 1.0
        return soon

    def lose(self, token: str) -> None:
        """A server has lost this lease; its holder learns that at its next renewal that gets through.

        Where it was replaced, and nothing else happens, all leases are asked for as soon as that is heard.
        """
        ttl = self.schedule.ttl
        until = self.world.now + min(ttl + 1.0, ttl / 2 + NOTICED)
        if self._replaced and isinstance(self.topology, BehindSentinel):
            until = min(until, self.topology.watched.left_by + max(map(self.patience, self.schedule.crews)))
            self.world.clockwork.at(until, self.referee.exclude)
        self.referee.lost.append((until, token))

    # -- the processes

    async def _live(self, crew: Crew) -> None:
        """The main task of a process."""
        schedule = self.schedule
        wakeup = {"plain": "poll", "resp2": "auto"}.get(crew.wakeup, crew.wakeup)
        protocol: Any = 2 if crew.wakeup == "resp2" else None
        backoff = Backoff(initial=min(crew.first_poll, crew.poll), maximum=crew.poll, jitter=schedule.jitter)
        async with contextlib.AsyncExitStack() as stack:
            sessions = [
                await stack.enter_async_context(
                    Session(client, wakeup=wakeup, backoff=backoff, protocol=protocol, **self._telling())
                )
                for client in self.topology.clients(crew.wakeup, stack)
            ]
            session = sessions if len(sessions) > 1 else sessions[0]
            self.actors[crew.part] = actors = Actors(
                session,
                schedule.kind,
                self.referee,
                ttl=schedule.ttl,
                options=self._options(crew),
                hasty=schedule.hasty,
                busy=crew.busy,
                patience=self.patience(crew),
                idle=self._idle(crew),
                ledger=self.ledger,
                left_block=partial(self.left_block, crew),
            )
            loop = asyncio.get_running_loop()
            tasks = [loop.create_task(actors.work(worker), name=worker.part) for worker in crew.workers]
            if tasks:
                await asyncio.wait(tasks)
            for task in tasks:
                task.result()
            if self.schedule.faults:
                await self._get_in(actors, crew)
            if schedule.kind.cached and schedule.seed % 2:
                await asyncio.sleep(max(CACHES) + ENDED)
                if left := session.statistics().cached:
                    self.referee.wrong(f"{crew.part} still keeps {left} that nobody uses")

    def _telling(self) -> dict[str, Any]:
        """Of the sort with deadlocks, sessions end them, and say so; others are made as ever."""
        if self.schedule.kind.work != "entangle":
            return {}
        return {"on_deadlock": "raise", "listeners": [self.ledger.rings]}

    def _options(self, crew: Crew) -> dict[str, float]:
        """Each of several masters has time for all that messages may take, unless the schedule is hasty."""
        kind = self.schedule.kind
        if kind.replicas:
            return {"replicas": kind.replicas}
        if kind.topology != "masters" or self.schedule.hasty:
            return {}
        return {"node_timeout": min(self.patience(crew), self.schedule.ttl / 2)}

    async def _get_in(self, actors: Actors, crew: Crew) -> None:
        """When the faults are over, everybody gets what there is."""
        last = max(fault.at + fault.lasts for fault in self.schedule.faults)
        await asyncio.sleep(max(0.0, last - self.world.now))
        final = Round(
            part=f"{crew.part}.end",
            after=0.0,
            want=self.schedule.kind.whole,
            timeout=None,
            cancel=None,
            hold=0.0,
        )
        while not await actors.perform(final):
            if self.world.now > self._settled_at:
                self.referee.wrong(f"{crew.part} does not get in after the faults")
                return
            await asyncio.sleep(0.1)

    def patience(self, crew: Crew) -> float:
        """Seconds until a new session of this crew has its first answer, at most."""
        return CONNECTED * self.topology.distance * (crew.delays.longest + crew.busy)

    @staticmethod
    def _trip(crew: Crew) -> float:
        """Seconds in which a connected session of this crew knows the answer to a request, at most."""
        return 2 * crew.delays.longest + TURNS * crew.busy + 0.001

    def _idle(self, crew: Crew) -> float:
        """How long something may be free while somebody of this crew waits for it."""
        if self.schedule.hasty:
            return inf
        crews = self.schedule.crews
        if self.schedule.kind.stepwise:
            # Where each has some of it, they ask again after a while. And one that takes a name after the
            # other may first have to connect to the nodes of the others.
            return IDLE + crew.poll + max(map(self.patience, crews))
        # One release wakes one waiter. The others wait for that one, which comes with its next poll where it
        # is not told, and which may have to make the connection on which it asks replicas.
        connected = max(map(self.patience, crews)) if self.schedule.kind.replicas else 0.0
        travel = max(one.delays.longest + one.busy for one in crews)
        handed_over = HANDED_OVER * self.topology.distance * travel + 0.15
        return (
            self.topology.proof
            + connected
            + min(IDLE, handed_over)
            + max((0.0 if one.hears else one.poll) for one in crews)
        )

    def _left_with_combiners(self) -> set[str]:
        """The items that a server still has, and that nobody has acknowledged."""
        found: set[str] = set()
        for node in self.world.nodes:
            for store in node.server.stores.values():
                for key, items in store.values.items():
                    if b".items:" not in key:
                        continue
                    value: Any = store.values.get(key.replace(b".items:", b".value:"), {})
                    done = float(dict(value).get(b"done", b"0"))
                    found |= {
                        json.loads(member.split(b":", 3)[3])
                        for member in items.scores
                        if int(member.partition(b":")[0]) > done
                    }
        return found

    @property
    def _outlasting(self) -> float:
        """How long keys last that hold a lease which nobody lets go of: beside it stood marks of waiters."""
        return (MARKS * LONGEST_POLL if self.schedule.kind.spans else 0.0) + self.schedule.ttl + SLACK

    def _look_around(self) -> None:
        """Everybody has gone: nothing is left."""
        world, referee = self.world, self.referee
        world.run(lambda: not referee.holding, limit=world.now + LIMIT)
        world.clockwork.rest()
        if self.schedule.kind.work == "combine":
            self.ledger.combined.on_server = self._left_with_combiners()
        self.ledger.judge()
        if self.schedule.kind.work == "keep":
            self.ledger.ticks.rise(world.trace.ticks())
        detached = any(
            one.doing in ("detach", "adopt") or one.steal
            for crew in self.schedule.crews
            for worker in crew.workers
            for one in worker.rounds
        )
        detached = detached or self.schedule.kind.work == "end"
        if self.schedule.faults or self.schedule.hasty:
            # Of the dead, of late votes, and of what the server did when nobody could tell it any more.
            world.pass_until(max(world.now, self._settled_at) + QUEUE_TTL)
        world.pass_until(world.now + AFTERWARDS + (self._outlasting if detached else 0.0))
        for process in world.processes:
            if process.dead:
                continue
            referee.violations += [f"{process.name}: {problem}" for problem in process.problems]
            for task in process.tasks():
                referee.wrong(f"{process.name}: a task is left: {task.get_name()}")
        dead = {process.name for process in world.processes if process.dead}
        for wire in world.network.wires:
            if wire.process in dead:
                continue
            referee.wrong(f"a connection is left: {wire.name}")
        for node in world.nodes:
            node.server.now_us = node.clock()  # a replica removes nothing by itself, but hides it
            node.server.sweep()
            for store in node.server.stores.values():
                for key in map(bytes.decode, store.present()):
                    if not is_fence(key) and not self._may_stay(key) and not self._outlasts(key):
                        end = store.ends.get(key.encode())
                        left = "ever" if end is None else f"{end - node.server.now_us // 1000} ms"
                        referee.wrong(f"left behind: {key} for {left}")
        kind, trace = self.schedule.kind, world.trace
        if kind.cached and not self.schedule.faults:
            trip = max((2 * (crew.delays.longest + crew.busy) for crew in self.schedule.crews), default=0.0)
            Answers(referee, trip).judge([one for actors in self.actors.values() for one in actors.attempts])
        if kind.unconfirmed and not self.schedule.faults:
            trip = max((2 * (crew.delays.longest + crew.busy) for crew in self.schedule.crews), default=0.0)
            OwnReleases(referee, trip).judge([one for own in self.actors.values() for one in own.attempts])
        referee.judge(
            trace.first_seen() if kind.strict or kind.spans or kind.limited else {},
            trace.readers() if kind.phased else [],
            limited.Turns(trace.of_limits() if kind.limited else ()),
        )


@contextlib.contextmanager
def _near(kind: Kind) -> Iterator[None]:
    """Fewer waiters than in the library are near the front."""
    before = wakeups.NEAR
    if kind.near is not None:
        wakeups.NEAR = kind.near  # type: ignore[misc]
    try:
        yield
    finally:
        wakeups.NEAR = before  # type: ignore[misc]


class Runner:
    """Runs many schedules, one after the other; a context, in which randomness is seeded."""

    def __init__(self) -> None:
        self._seeded = seeded()
        self._warm = False

    def __enter__(self) -> Self:
        self._source = self._seeded.__enter__()
        self._logged = logging.root.manager.disable
        logging.disable()
        gc.collect()
        gc.freeze()
        gc.disable()
        return self

    def __exit__(self, *error: object) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        self._seeded.__exit__(*error)
        logging.disable(self._logged)
        gc.enable()
        gc.unfreeze()

    def run(self, schedule: Schedule) -> Outcome:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # the killed leave much open
            with eager(schedule), _near(schedule.kind):
                outcome = Run(schedule, self._source).run()
            # Here and nowhere else: what the collector finds is told to loops and listeners. After each
            # schedule, while its memory is still in the caches of the processor.
            gc.collect()
            if not self._warm:  # modules and caches that the first schedule has filled stay
                gc.freeze()
                self._warm = True
        return outcome
