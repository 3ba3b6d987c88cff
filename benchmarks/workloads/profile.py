"""Where the client's CPU time of a cycle goes: what runs is looked at each millisecond of it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any, Final

from aiolocks import Lock, Session

from ..model import Figure, Sample
from ..settings import Address
from .base import Measure, Workload

_EACH: Final = 0.001
"""Seconds of CPU time between two looks."""
_TASKS: Final = {"one task": (1, 6_000), "200 tasks": (200, 120)}
"""How many, and how many cycles of each."""
_PARTS: Final = {
    "asyncio": ("the event loop and the socket", ("/asyncio/", "/selectors.py", "/uvloop/")),
    "transport": ("requests and replies", ("/aiolocks/transport/", "/redis/", "/hiredis/")),
    "waiting": ("the acquire: its turn, its wait, its end", ("/aiolocks/lock/waiting/",)),
    "lease": ("the lease: deadlines, renewal, cancellation, release", ("/aiolocks/lock/",)),
}
"""By the first that fits the file that runs. The time of C code counts for the Python code that calls it."""
_REST: Final = "rest"


class Profile(Workload):
    """Acquire and release, as in `alone` and in `many`."""

    name = "profile"
    usual_rounds = 3  # few: each has thousands of looks
    work = "`alone` and `many`, with a look each millisecond of the client's CPU time at the file that runs"
    figures = (
        Figure("client", "client: µs of CPU a cycle", 0),
        *(Figure(key, label, 0) for key, (label, _) in _PARTS.items()),
        Figure(_REST, "the lock object, and the benchmark itself", 0),
    )
    targets = ()
    one_server = "it is the client that is looked at"

    @property
    def contenders(self) -> Sequence[str]:
        """Each way to use them."""
        return tuple(_TASKS)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """One session."""
        async with address.client() as client, Session(client) as session:

            async def measure(contender: str) -> Sample:
                tasks, full = _TASKS[contender]
                cycles = self.settings.size(full, 2)
                looks = Counter[str]()
                began = time.process_time()
                with _looking(looks):
                    await asyncio.gather(*(_one(session, f"{tasks}:{one}", cycles) for one in range(tasks)))
                spent = (time.process_time() - began) / (tasks * cycles) * 1e6
                shares = {key: looks[key] / (looks.total() or 1) for key in (*_PARTS, _REST)}
                return Sample({"client": spent} | {key: share * spent for key, share in shares.items()})

            yield measure


async def _one(session: Session, name: str, cycles: int) -> None:
    lock = Lock(session, name)
    for _ in range(cycles):
        async with lock:
            pass


@contextmanager
def _looking(looks: Counter[str]) -> Generator[None]:
    def look(_: int, frame: FrameType | None) -> Any:
        file = frame.f_code.co_filename if frame is not None else ""
        looks[next((key for key, (_, parts) in _PARTS.items() if any(p in file for p in parts)), _REST)] += 1

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, _EACH, _EACH)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
