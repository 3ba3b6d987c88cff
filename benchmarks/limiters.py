"""What rate limiters do: `RateLimit` beside other libraries, each cell of the table by a run.

    pip install --group limiters
    python -m benchmarks.limiters --docs docs

It takes three minutes. It prints the table and, with `--docs`, writes it into the page on rate limits. The
packages are those of the dependency group `limiters`; the suite does not need them.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Final

from redis.asyncio import Redis

from aiolocks import RateLimit, Session
from aiolocks.testing import EmbeddedServer

from .docs import with_tables

_AHEAD: Final = 60
"""Seconds by which the clock of a client is ahead."""
_DOES_NOT_WAIT: Final = "does not wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one limit: `limit` requests in `per` seconds, and at most `burst` at once."""

    limit: int
    per: float
    burst: int


class Limiter(ABC):
    """A limit of one library, by its documented calls.

    Args:
        client: Its own; a limiter that counts in memory does not use it.
        url: Of the server.
        name: Of the limit.
        figures: Of the limit.
    """

    title: ClassVar[str]
    package: ClassVar[str]
    waits: ClassVar[bool] = True

    def __init__(self, client: Redis, url: str, name: str, figures: Figures) -> None:
        self.client = client
        self.url = url
        self.name = name
        self.figures = figures

    @abstractmethod
    async def take(self, n: int = 1) -> bool:
        """Takes n at once, or none."""

    @abstractmethod
    async def wait(self, n: int = 1) -> None:
        """Waits until n are admitted."""

    async def correct(self, estimate: int, actual: int) -> None:
        """Says of an admitted request that it was an estimate; the only way of most is a negative weight."""
        await self.take(actual - estimate)

    async def close(self) -> None:  # noqa: B027 - most have nothing
        """Gives up what is its own."""


class Ours(Limiter):
    """`RateLimit`."""

    title, package = "`RateLimit`", "aiolocks"

    def __init__(self, client: Redis, url: str, name: str, figures: Figures) -> None:
        super().__init__(client, url, name, figures)
        self._session = Session(client)
        self._limit = RateLimit(self._session, name, figures.limit, figures.per, burst=figures.burst)
        self._last: Any = None

    async def take(self, n: int = 1) -> bool:
        self._last = await self._limit.try_acquire(n)
        return bool(self._last)

    async def wait(self, n: int = 1) -> None:
        await self._limit.acquire(n)

    async def correct(self, estimate: int, actual: int) -> None:
        await self._last.settle(actual)

    async def close(self) -> None:
        await self._session.aclose()


class Aiolimiter(Limiter):
    """`AsyncLimiter`, whose burst is its rate; a try looks whether there is capacity."""

    title = package = "aiolimiter"

    def __init__(self, client: Redis, url: str, name: str, figures: Figures) -> None:
        super().__init__(client, url, name, figures)
        per = figures.per * figures.burst / figures.limit
        self._limiter: Any = importlib.import_module("aiolimiter").AsyncLimiter(figures.burst, per)

    async def take(self, n: int = 1) -> bool:
        if n > 0 and not self._limiter.has_capacity(n):
            return False
        await self._limiter.acquire(n)
        return True

    async def wait(self, n: int = 1) -> None:
        await self._limiter.acquire(n)


class Limits(Limiter):
    """Its moving window on Redis; it has no burst."""

    title = package = "limits"
    waits = False

    def __init__(self, client: Redis, url: str, name: str, figures: Figures) -> None:
        super().__init__(client, url, name, figures)
        limits: Any = importlib.import_module("limits")
        storage = importlib.import_module("limits.aio.storage").RedisStorage(
            f"async+{url}", implementation="redispy"
        )
        self._limiter: Any = importlib.import_module("limits.aio.strategies").MovingWindowRateLimiter(storage)
        per = figures.per * figures.burst / figures.limit
        self._item = limits.RateLimitItemPerSecond(figures.burst, max(1, round(per)))

    async def take(self, n: int = 1) -> bool:
        taken: bool = await self._limiter.hit(self._item, self.name, cost=n)
        return taken

    async def wait(self, n: int = 1) -> None:
        raise NotImplementedError


class Throttled(Limiter):
    """Its GCRA on Redis."""

    title = package = "throttled-py"

    def __init__(self, client: Redis, url: str, name: str, figures: Figures) -> None:
        super().__init__(client, url, name, figures)
        throttled: Any = importlib.import_module("throttled.asyncio")
        timedelta = importlib.import_module("datetime").timedelta
        self._limiter = throttled.Throttled(
            key=name,
            using=throttled.RateLimiterType.GCRA.value,
            quota=throttled.per_duration(timedelta(seconds=figures.per), figures.limit, burst=figures.burst),
            store=throttled.RedisStore(server=url),
        )

    async def take(self, n: int = 1) -> bool:
        return not (await self._limiter.limit(cost=n)).limited

    async def wait(self, n: int = 1) -> None:
        if (await self._limiter.limit(cost=n, timeout=60)).limited:
            raise TimeoutError


class PyrateLog(Limiter):
    """pyrate-limiter's `RedisBucket`, a log of what was admitted; it has no burst."""

    title, package = "pyrate-limiter, `RedisBucket`", "pyrate-limiter"

    _limiter: Any = None

    def _rates(self, pyrate: Any) -> list[Any]:
        figures = self.figures
        return [pyrate.Rate(figures.burst, round(1000 * figures.per * figures.burst / figures.limit))]

    async def _bucket(self, pyrate: Any) -> Any:
        return await pyrate.RedisBucket.init(self._rates(pyrate), self.client, self.name)

    async def _made(self) -> Any:
        if self._limiter is None:
            pyrate: Any = importlib.import_module("pyrate_limiter")
            self._limiter = pyrate.Limiter(await self._bucket(pyrate))
        return self._limiter

    async def take(self, n: int = 1) -> bool:
        taken: bool = await (await self._made()).try_acquire_async(self.name, n, blocking=False)
        return taken

    async def wait(self, n: int = 1) -> None:
        if not await (await self._made()).try_acquire_async(self.name, n, blocking=True):
            raise TimeoutError

    async def close(self) -> None:
        if self._limiter is not None:
            self._limiter.close()


class PyrateGcra(PyrateLog):
    """Its GCRA with a `RedisStateStore`."""

    title = "pyrate-limiter, `GCRA`"

    def _rates(self, pyrate: Any) -> list[Any]:
        figures = self.figures
        return [pyrate.Rate(figures.limit, round(1000 * figures.per), burst=figures.burst)]

    async def _bucket(self, pyrate: Any) -> Any:
        store = pyrate.RedisStateStore(self.client, self.name)
        return pyrate.StateBucket(self._rates(pyrate), pyrate.GCRA(), store)


LIMITERS: Final[Sequence[type[Limiter]]] = (Ours, Aiolimiter, Limits, Throttled, PyrateLog, PyrateGcra)


@dataclass(frozen=True, slots=True)
class Stage:
    """A server of its own for one cell, and what makes limits on it."""

    kind: type[Limiter]
    server: EmbeddedServer
    url: str
    resources: AsyncExitStack

    def limiter(self, figures: Figures) -> Limiter:
        """One more user of the same name, with a client of its own."""
        limiter = self.kind(self.server.client(), self.url, "limit", figures)
        self.resources.push_async_callback(limiter.close)
        return limiter

    async def takes_elsewhere(self, figures: Figures, tries: int, *, ahead: int = 0) -> int:
        """How many tries of another process are admitted, whose clock is so many seconds ahead."""
        words = [self.kind.__name__, self.url, tries, ahead, figures.limit, figures.per, figures.burst]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __spec__.name, "--takes", *map(str, words), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        return int(output)


@asynccontextmanager
async def _stage(kind: type[Limiter]) -> AsyncGenerator[Stage]:
    async with EmbeddedServer(port=0, password=False) as server, AsyncExitStack() as resources:
        yield Stage(kind, server, f"redis://127.0.0.1:{server.port}", resources)


async def _takes(limiter: Limiter, tries: int) -> int:
    return sum([await limiter.take() for _ in range(tries)])


async def _requests(stage: Stage, count: Callable[[], Any]) -> int:
    """How many requests the server gets meanwhile; what scripts do inside is none."""
    seen, begun = 0, asyncio.Event()

    async def listen() -> None:
        nonlocal seen
        async with stage.server.client().monitor() as monitor:
            begun.set()
            async for command in monitor.listen():
                seen += command["client_type"] != "lua" and command["command"].split()[0] not in _NO_REQUESTS

    listener = asyncio.create_task(listen())
    await begun.wait()
    await asyncio.sleep(0.1)
    before = seen
    await count()
    await asyncio.sleep(0.1)
    listener.cancel()
    with suppress(asyncio.CancelledError):
        await listener
    return seen - before


_NO_REQUESTS: Final = frozenset({"CLIENT", "HELLO", "SELECT", "PING", "AUTH", "INFO", "UNSUBSCRIBE"})
"""What a client asks when it connects."""


# -- The lines of the table.


async def _shared(stage: Stage) -> str:
    figures = Figures(limit=10, per=60, burst=10)
    admitted = sum(await asyncio.gather(*(stage.takes_elsewhere(figures, 20) for _ in range(2))))
    return "yes" if admitted == 10 else f"no: {admitted} of 10"


async def _drain(stage: Stage, order: list[int]) -> float:
    """40 tasks want one each of 20 a second, evenly: seconds until all are through."""
    limiter = stage.limiter(Figures(limit=20, per=1, burst=1))
    await limiter.take()
    await asyncio.sleep(0.1)

    async def wait(number: int) -> None:
        await limiter.wait()
        order.append(number)

    began = time.monotonic()
    await asyncio.wait_for(asyncio.gather(*map(wait, range(40))), 60)
    return time.monotonic() - began


async def _all_through(stage: Stage) -> str:
    return f"{await _drain(stage, []):.2f} s" if stage.kind.waits else _DOES_NOT_WAIT


async def _asked(stage: Stage) -> str:
    if not stage.kind.waits:
        return _DOES_NOT_WAIT
    return str(await _requests(stage, lambda: _drain(stage, [])))


async def _in_order(stage: Stage) -> str:
    if not stage.kind.waits:
        return _DOES_NOT_WAIT
    order: list[int] = []
    await _drain(stage, order)
    return "yes" if order == sorted(order) else "no"


async def _large_in_order(stage: Stage) -> str:
    """A request of three stands before ones of one that go on coming."""
    if not stage.kind.waits:
        return _DOES_NOT_WAIT
    limiter, passed = stage.limiter(Figures(limit=20, per=1, burst=3)), 0
    while await limiter.take():
        pass

    async def small() -> None:
        nonlocal passed
        await limiter.wait()
        passed += not large.done()

    large = asyncio.create_task(limiter.wait(3))
    others = []
    for _ in range(30):
        await asyncio.sleep(0.02)
        others.append(asyncio.create_task(small()))
    await asyncio.wait_for(asyncio.gather(large, *others), 60)
    return "yes" if not passed else f"no: {passed} of 30 pass"


async def _at_once(stage: Stage) -> str:
    limiter = stage.limiter(Figures(limit=100, per=60, burst=100))
    await limiter.take()
    return f"{await _requests(stage, lambda: _takes(limiter, 50)) / 50:g}"


async def _gives_up(stage: Stage) -> str:
    """Ten waiters of one a second in 0.2 s give up, and then one comes that can be admitted after 0.2 s."""
    if not stage.kind.waits:
        return _DOES_NOT_WAIT
    limiter = stage.limiter(Figures(limit=5, per=1, burst=1))
    await limiter.take()
    began = time.monotonic()
    waiters = [asyncio.create_task(limiter.wait()) for _ in range(10)]
    await asyncio.sleep(0.1)
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    await limiter.wait()
    took = time.monotonic() - began
    return "yes" if took < 0.5 else f"no: {took:.1f} s"


async def _refused(stage: Stage) -> str:
    """One of one a second was taken; tries that are refused go on for 0.9 s, and then there is one."""
    limiter = stage.limiter(Figures(limit=1, per=1, burst=1))
    await limiter.take()
    began = time.monotonic()
    while time.monotonic() - began < 0.9:
        if await limiter.take():
            return "admits too early"
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.15)
    return "yes" if await limiter.take() else "no"


async def _two_figures(stage: Stage) -> str:
    """A program with 10 a minute has asked once; one with 30 a minute asks for all it may, and then that."""
    first = stage.limiter(Figures(limit=10, per=60, burst=10))
    second = stage.limiter(Figures(limit=30, per=60, burst=30))
    admitted = await _takes(first, 1) + await _takes(second, 60) + await _takes(first, 60)
    return "10: both hold" if admitted == 10 else str(admitted)


async def _weights(stage: Stage) -> str:
    limiter = stage.limiter(Figures(limit=10, per=60, burst=10))
    admitted = [await limiter.take(n) for n in (4, 4, 4, 2)]
    return "yes" if admitted == [True, True, False, True] else "no"


async def _corrected(stage: Stage) -> str:
    """Eight of ten were taken, and three were used: seven are left."""
    limiter = stage.limiter(Figures(limit=10, per=60, burst=10))
    await limiter.take(8)
    try:
        await limiter.correct(8, 3)
    except Exception:  # noqa: BLE001 - of any sort
        return "no"
    return "yes" if await _takes(limiter, 20) == 7 else "no"


async def _restarted(stage: Stage) -> str:
    """The server is killed under a waiter whose moment comes meanwhile; then it is there again, empty."""
    limiter = stage.limiter(Figures(limit=1, per=1, burst=1))
    await limiter.take()
    waiter = asyncio.create_task(limiter.wait()) if stage.kind.waits else None
    await asyncio.sleep(0.3)
    stage.server.kill()
    await asyncio.sleep(1.5)
    await stage.server.start()
    said = []
    if waiter is not None:
        try:
            await asyncio.wait_for(waiter, 20)
        except Exception as error:  # noqa: BLE001
            said.append(f"waiter: `{type(error).__name__}`")
        else:
            said.append("waiter goes on")
    errors: list[str] = []
    for _ in range(5):
        try:
            await limiter.take()
        except Exception as error:  # noqa: BLE001
            errors.append(type(error).__name__)
        await asyncio.sleep(0.2)
    if len(errors) == 5:
        said.append(f"each try: `{errors[-1]}`")
    elif errors:
        said.append(f"tries go on after {len(errors)} × `{errors[0]}`")
    else:
        said.append("tries go on")
    return "; ".join(said)


async def _ahead(stage: Stage) -> str:
    """The limit is taken, and then a process tries whose clock is ahead."""
    figures = Figures(limit=10, per=60, burst=10)
    await _takes(stage.limiter(figures), 20)
    more = await stage.takes_elsewhere(figures, 20, ahead=_AHEAD)
    return "none" if not more else str(more)


_LINES: Final[Mapping[str, Callable[[Stage], Any]]] = {
    "two processes share a limit": _shared,
    "40 tasks, 20 a second, are through after (best: 1.95 s)": _all_through,
    "requests to the server for these 40": _asked,
    "they are served in the order of asking": _in_order,
    "so is one of three permits among those of one": _large_in_order,
    "requests to the server for one that is admitted at once": _at_once,
    "waiters that give up leave nothing": _gives_up,
    "a refused try takes nothing": _refused,
    "one name with 10 and with 30 a minute: how many pass at once": _two_figures,
    "weights": _weights,
    "an estimate can be corrected": _corrected,
    "the server is killed, and back after 1.5 s": _restarted,
    f"how many of 10 pass again if a client's clock is {_AHEAD} s ahead": _ahead,
}
_IN_MEMORY: Final = {
    _restarted: "counts in its process",
    _asked: "0",
    _at_once: "0",
    _ahead: "counts in its process",
}


async def _cell(line: Callable[[Stage], Any], kind: type[Limiter]) -> str:
    if kind is Aiolimiter and line in _IN_MEMORY:
        return _IN_MEMORY[line]
    async with _stage(kind) as stage:
        try:
            cell: str = await line(stage)
        except TimeoutError:
            cell = "not in 60 s"
        return cell


async def _table() -> list[str]:
    lines = [f"| | {' | '.join(kind.title for kind in LIMITERS)} |", "|---" * (len(LIMITERS) + 1) + "|"]
    for title, line in _LINES.items():
        cells = [await _cell(line, kind) for kind in LIMITERS]
        lines.append(f"| {title} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr)
    return lines


async def _takes_here(kind: str, url: str, tries: int, figures: Figures) -> int:
    chosen = next(one for one in LIMITERS if one.__name__ == kind)
    async with Redis.from_url(url) as client:
        limiter = chosen(client, url, "limit", figures)
        try:
            return await _takes(limiter, tries)
        finally:
            await limiter.close()


def _set_clock_ahead(seconds: int) -> None:
    """Before the libraries are imported: some take the function by its name."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + seconds * 1_000_000_000


def main() -> None:
    """The table, or one of the processes that it needs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--docs", type=Path, help="the directory of the documentation, to write the table")
    parser.add_argument("--takes", nargs=7, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.takes is not None:
        kind, url, tries, ahead, limit, per, burst = arguments.takes
        _set_clock_ahead(int(ahead))
        figures = Figures(limit=int(limit), per=float(per), burst=int(burst))
        print(asyncio.run(_takes_here(kind, url, int(tries), figures)))
        return
    versions = ", ".join(
        f"{package} {metadata.version(package)}"
        for package in dict.fromkeys(kind.package for kind in LIMITERS[1:])
    )
    print(versions, file=sys.stderr)
    lines = asyncio.run(_table())
    print("\n".join(lines))
    if arguments.docs is not None:
        page = arguments.docs / "how-to/ratelimit.md"
        for path, text in with_tables(page, {"limiters": iter([*lines, ""])}).items():
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
