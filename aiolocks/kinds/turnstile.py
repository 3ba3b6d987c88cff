"""The turnstile: of all who come within a window, one is the first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Never, final

from ..errors import BackendError
from ..lock.blocks import OpenBlocks, told_at_exit
from ..lock.clock import milliseconds
from ..lock.engine import Engine
from ..lock.lease import Releasing
from ..lock.misuse import AsyncOnly
from ..lock.notes import note
from ..lock.options import SHORTEST_TTL, Seconds, lock_name, reject_unknown, seconds
from ..lock.shield import wait_shielded
from ..lock.sources import Client, engine_of, source_of
from ..transport.answers import NO_TTL, Released, released
from ..transport.keys import key
from ..transport.request import MOST_KNOWN, Request, Script
from ..transport.steps.checks import of_others, without_ttl, wrong_types
from ..transport.steps.family import Family, Kind
from ..transport.steps.snapshots import Content, Holder, Snapshot, whole_number

_ENTER: Final = Script("turnstile_enter", "forms", "fence", moves=True)
_END: Final = Script("turnstile_end", moves=True, frees=True)

REMEMBERED: Final = 1000
"""Places from which on the server forgets the oldest: about 100 KB. It remembers more, up to `MOST_KNOWN`,
where they are younger than `known_ms`."""
_FIRST: Final = 1


def read_turnstile(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """A window that is open: its first entrant, and how many have gone through."""
    if wrong := wrong_types({"": "zset"}, found):
        return Snapshot(now_us, stands=True, problems=wrong)
    if not (places := found[""]):
        return Snapshot(now_us)
    numbers = {token: whole_number(place) for token, place in places.value.items()}
    winner = next((token for token, place in numbers.items() if place == 1), None)
    if winner is None or None in numbers.values():
        return Snapshot(now_us, stands=True, problems=(of_others(""), *without_ttl(places, ours=False)))
    left_ms = None if places.ttl_ms == NO_TTL else places.ttl_ms
    holder = Holder((winner.decode(errors="replace"),), None, left_ms)
    value = max(filter(None, numbers.values()))
    return Snapshot(now_us, (holder,), value, stands=True, problems=without_ttl(places, ours=True))


TURNSTILES: Final = Family(read=read_turnstile, passive="")
KINDS: Final = (
    Kind(
        TURNSTILES,
        "turnstile",
        "Turnstile",
        value="{} went through",
        needs=("zrangebyscore", "zremrangebyscore", "zscore"),
    ),
)


@final
class TurnstileSteps:
    """The steps of one turnstile under its name."""

    __slots__ = ("_keys", "_known_ms")

    def __init__(self, prefix: str, name: str, *, known_ms: int) -> None:
        self._keys = (key(prefix, "turnstile", name),)
        self._known_ms = known_ms

    def enter(self, token: str, window_ms: int) -> Request[int]:
        """Goes through: the place in this window."""
        args = (token, window_ms, REMEMBERED, self._known_ms, MOST_KNOWN)
        return Request(_ENTER, self._keys, args, int, lane=token)

    def end(self, token: str) -> Request[Released]:
        """Ends the window if this token began it."""
        return Request(_END, self._keys, (token,), released, lane=token)


@final
class Turnstile(AsyncOnly):
    """Numbers the callers that come within a window of time: 1 for the winner, 2, 3, … for the rest.

    The first task that enters begins the window and does the work. The other tasks know from their numbers
    that the work is being done, and how many tasks have come. No task waits, and no task holds anything.

    ```python
    if await Turnstile(redis, "cache:front-page").enter() == 1:
        ...                     # rebuild it; the other tasks serve the old one

    async with Turnstile(redis, "cache:front-page", window=30) as n:
        if n == 1:
            ...                 # the end of this block ends the window
    ```

    The window begins when the winner comes, and its length does not depend on how many come after. With
    `async with` it ends when the winner leaves, if that is earlier; the exits of other tasks change nothing.
    If a winner dies, the next window has a new winner. The same happens if a winner takes longer than the
    window: then two work at the same time. If that would do harm, use a `Lock`.

    It is for a crowd that comes at the same time. If the clocks of machines differ by more than a job takes,
    then with `async with` each machine runs the job, because each finds that the window has ended. For such a
    job, use `enter()` alone, which keeps the window, or a `Lock` with `at_least`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8.
        window: Seconds that a window lasts by the server's clock, 50 ms to ten years. If that clock is set
            back, the window is longer by the same time. All users of a name should give the same window; the
            winner's window counts. The default, 2 s, is about one crowd. If the exit is to end the window,
            give more than the work takes.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
    """

    __slots__ = ("__weakref__", "_entered", "_name", "_source", "_window")

    _elsewhere = "make one there, with the same arguments"

    def __init__(self, client: Client, name: str, *, window: Seconds = 2.0, **unknown: Never) -> None:
        reject_unknown("Turnstile", unknown)
        self._source = source_of(client)
        self._name = lock_name(name)
        self._window = seconds("window", window, least=SHORTEST_TTL)
        # The entries that `async with` on this very object has made, for its exits; nothing else.
        self._entered: OpenBlocks[_Passage] = OpenBlocks()

    @property
    def name(self) -> str:
        """Name of the turnstile."""
        return self._name

    @property
    def window(self) -> float:
        """Seconds that a window lasts."""
        return self._window

    async def enter(self) -> int:
        """Enters, and returns the number within this window: 1 for the task that began it.

        A number that was given stays taken until the window ends, in any case.

        Raises:
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`; or 100 000 tasks have entered within 30 s, or twice that timeout.
            SessionClosedError: The session is closed.

        After a cancellation or an error, a window that it may have begun ends at once, so that the next task
        is the winner.
        """
        return (await self._enter()).place

    async def _enter(self) -> _Passage:
        engine = engine_of(self._source, self)
        settings, token = engine.settings, engine.token()
        steps = TurnstileSteps(settings.prefix, self._name, known_ms=settings.known_ms)
        call, entering = engine.start(
            steps.enter(token, milliseconds(self._window)),
            until=engine.now() + settings.command_timeout,
        )
        ending = steps.end(token)
        try:
            place = await entering
        except BaseException:
            if engine.forget(call):
                engine.take_back(ending, self._window)
            raise
        # Later than the server's: it had counted the place before the reply came.
        return _Passage(engine, ending, place, over_at=engine.now() + self._window)

    async def __aenter__(self) -> int:
        passage = await self._enter()
        task = asyncio.current_task()
        assert task is not None
        self._entered.add(task, passage)
        return passage.place

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            passage = self._entered.take(None, alike=_Passage.ends_nothing)
        except LookupError:
            error = RuntimeError(
                f"cannot tell which entry to end: {self!r} was not entered in this task, and of several "
                "entries only the winner's ends the window. Leave it in the task that entered it"
            )
            await told_at_exit(error, exc)
            return
        # None: an exit in another task has ended it.
        if passage is not None and passage.place == _FIRST:
            await passage.end(exc)

    def __repr__(self) -> str:
        return f"<Turnstile {self._name!r} window={self._window:g}>"


@final
class _Passage:
    """One entry by `async with`, until its exit.

    Args:
        over_at: Loop time from which the window that this may have begun is over anyway.
    """

    __slots__ = ("_ending", "_engine", "_over_at", "place")

    def __init__(self, engine: Engine, ending: Request[Released], place: int, *, over_at: float) -> None:
        self._engine = engine
        self._ending = ending
        self._over_at = over_at
        self.place = place

    def ends_nothing(self) -> bool:
        """Whether its exit changes nothing."""
        return self.place != _FIRST

    async def end(self, body_raised: BaseException | None) -> None:
        """Ends the window; never masks what the body raised, nor holds up a cancellation for over 1 s."""
        engine = self._engine
        if engine.now() >= self._over_at:
            return
        until = engine.now() + engine.settings.command_timeout
        releasing = Releasing(engine, self._ending, until=min(until, self._over_at))
        cancelled_by = body_raised if isinstance(body_raised, asyncio.CancelledError) else None
        await wait_shielded(releasing.until_ended, cancelled_by=cancelled_by)
        fault = releasing.fault
        if fault is not None and body_raised is None and engine.now() < self._over_at:
            if isinstance(fault.error, BackendError):
                note(fault.error, f"aiolocks: asked for {self._ending.keys[0].decode()!r}")
            raise fault.error
