"""What one use of a lock runs of the library: counts, which are the same at any hour and on any machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Any, Final, NamedTuple

from ..counted import counting_code, counting_objects
from ..crew import Crew
from ..desk import Desk
from ..model import Figure, Sample
from ..settings import Address
from .base import Measure, Workload
from .costs import HOLD, KINDS, MASTERS, TTL, Renewed, sessions

LOCKS: Final = 100
CYCLES: Final = 3
"""Of each task, as many tasks at once as there are locks: what a write or a read costs is shared."""
_WAITS: Final = 5
_RENEWALS: Final = 1

CASES: Final = {
    "kept": "kept lock",
    "new": "new lock",
    "handed": "handed over",
    "woken": "refused and woken, with its holder",
    "renewed": "renewed",
}
"""What is counted for each kind, and what readers call it."""


class Work(NamedTuple):
    """What is counted.

    Attributes:
        do: Does it.
        times: How many uses that is.
    """

    do: Callable[[], Awaitable[object]]
    times: int


class Counts(Workload):
    """A table: a row for each kind."""

    name = "counts"
    work = (
        f"acquire and release by {LOCKS} tasks at once, each {CYCLES} times: with a lock of its own that is "
        "kept, with one that is made each time, and with one lock for all, which the tasks of a session hand "
        "over; a holder in one session and a waiter in another; renewals"
    )
    figures = (
        *(Figure(f"{case}_bytecodes", f"{label}: bytecodes") for case, label in CASES.items()),
        *(Figure(f"{case}_frames", f"{label}: calls") for case, label in CASES.items()),
        *(Figure(f"{case}_objects", f"{label}: objects") for case, label in CASES.items()),
        Figure("kept_files", "kept lock: files"),
    )
    targets = ()
    once = True  # counts are steady, and each case warms up by itself
    limit = 900.0
    one_server = "it is the client that is counted"

    @property
    def contenders(self) -> Sequence[str]:
        """The kinds."""
        return tuple(KINDS)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """A process of its own: counting slows what comes after. Masters for the kind that has several."""
        async with AsyncExitStack() as stack:
            masters = [await stack.enter_async_context(self.settings.embedded()) for _ in range(MASTERS)]

            async def measure(contender: str) -> Sample:
                several = [asdict(Address.of(one)) for one in masters]
                async with Crew(address, 1, loop="asyncio") as crew:
                    arguments = {"masters": several, "number": self.settings.size(LOCKS, 5)}
                    return Sample(await crew[0].do(count, contender=contender, **arguments))

            yield measure


async def count(desk: Desk, contender: str, masters: list[dict[str, Any]], number: int) -> dict[str, float]:
    """All counts of one kind, with that many locks and tasks."""
    kind = KINDS[contender]
    addresses = [desk.address] if kind.masters == 1 else [Address(**master) for master in masters]
    async with AsyncExitStack() as stack:
        renewed = Renewed()
        here = await sessions(addresses, stack, listeners=(renewed,))
        there = await sessions(addresses, stack)
        make = partial(kind.make, here, ttl=30)
        locks = [make(name=f"counts:{one}") for one in range(number)]

        async def cycles(made: Callable[[], Any]) -> None:
            for _ in range(CYCLES):
                async with made():
                    pass

        async def all_at_once(makers: list[Callable[[], Any]]) -> None:
            await asyncio.gather(*map(cycles, makers))

        other = (kind.other or kind.make)(there, "counts:0", ttl=30)
        kept: list[Callable[[], Any]] = [partial(_same, lock) for lock in locks]
        anew: list[Callable[[], Any]] = [partial(make, name=f"counts:{one}") for one in range(number)]
        works = {
            "kept": Work(partial(all_at_once, kept), number * CYCLES),
            "new": Work(partial(all_at_once, anew), number * CYCLES),
            "woken": Work(partial(_woken, locks[0], other), _WAITS),
        }
        if kind.other is None:
            works["handed"] = Work(partial(all_at_once, kept[:1] * number), number * CYCLES)
        found: dict[str, float] = {}
        for case, work in works.items():
            found |= await _code(case, work)
        held = [await kind.make(here, f"counts:renewed:{one}", ttl=TTL).acquire() for one in range(20)]
        works["renewed"] = Work(partial(renewed.times, _RENEWALS * len(held)), _RENEWALS * len(held))
        found |= await _code("renewed", works["renewed"])
        for case, work in reversed(works.items()):  # the leases are there still
            with counting_objects() as made:
                await work.do()
            found[f"{case}_objects"] = made.total() / work.times
            if case == "renewed":
                for lease in held:
                    await lease.release()
        return found


async def _code(case: str, work: Work) -> dict[str, float]:
    with counting_code():  # this one also connects, imports, and loads scripts
        await work.do()
    with counting_code() as code:
        await work.do()
    return {
        f"{case}_bytecodes": code.bytecodes / work.times,
        f"{case}_frames": code.frames / work.times,
        f"{case}_files": len(code.files),
    }


def _same(lock: Any) -> Any:
    return lock


async def _woken(own: Any, other: Any) -> None:
    """A task of one session waits for a holder of another, again and again."""
    for _ in range(_WAITS):
        async with other:
            waiting = asyncio.create_task(own.acquire())
            await asyncio.sleep(HOLD)
        await (await waiting).release()
