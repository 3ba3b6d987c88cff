"""The combiner: a caller that cannot have the lock leaves its work with it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Never, TypeVar, final

from ..lock.clock import milliseconds
from ..lock.misuse import AsyncOnly
from ..lock.naming import NameTemplate, text_of
from ..lock.options import (
    Options,
    Seconds,
    lock_name,
    optional_seconds,
    reject_unknown,
    seconds,
    whole_number,
)
from ..lock.sources import engine_of, source_of
from .combinersteps import Bounds
from .combining import LABEL, Batch, Combining, Left, Run, Settings
from .serializers import JSON, Serializer

T = TypeVar("T")

_LARGEST_BATCH: Final = 10_000
_MOST_WAITING: Final = 1_000_000
_MOST_ATTEMPTS: Final = 1_000_000
_SHORTEST_KEEP: Final = 1.0
_LONGEST_WINDOW: Final = 3600.0
_RUN_OF: Final = "_aiolocks_run"

_MEANT: Final = {
    "batch_size": "most= (how many items a batch has at most)",
    "max_batch": "most= (how many items a batch has at most)",
    "limit": "most= (how many items a batch has at most) or most_waiting= (how many wait at most)",
    "maxsize": "most_waiting= (how many wait at most)",
    "delay": "window= (seconds for which it collects before a run)",
    "debounce": "window= and within= (each item begins the window anew, at most within in all)",
    "retries": "retry= (how many more attempts)",
    "blocking_timeout": "asyncio.timeout() around submit(): the item stays left",
}


@final
class Combiner(AsyncOnly):
    """Waiting that works: a caller that would have to wait leaves its work, and one does it for all.

    ```python
    @Combiner(redis, "sync:{account}")
    async def sync(batch: Batch) -> int:     # one process at a time, with all that was left until it starts
        return await push(batch.items)

    answer = await sync(change, account=17)  # when the batch that holds this item is done
    ```

    At most one batch of a name runs at a time. Items that come while it runs are the next batch: one of
    their callers runs it when the first has ended, and the others wait for its result. So many callers make
    few runs, and no item is missed: a run that begins after an item was left has it.

    Items stay on the server until the run of their batch is acknowledged under its fencing token. A runner
    that dies or loses its lease is followed by a caller that waits, by the next one to come, or by `drain`:
    each item is run at least once. The effects are exactly once where the store refuses the late: check
    `batch.fencing_token` there, as `aiolocks.contrib.sqlalchemy.fence` does, and write what was done in
    the same transaction.

    It is no queue: items that nobody runs for `keep` are dropped, there are no priorities, and a batch that
    fails for good goes to its callers, not to a place for dead letters.

    The idea is flat combining: Hendler, Incze, Shavit and Tzafrir, "Flat Combining and the
    Synchronization-Parallelism Tradeoff", SPAA 2010.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8. Each field in braces is given to each call, and
            percent-encoded; `{{` and `}}` are braces of the name itself.
        ttl: Seconds that a run lasts without a renewal, 50 ms to ten years. It is renewed while its runner
            lives, however long it takes; when one dies, the next follows after that time.
        window: Seconds for which items are collected before a run, from the first one on, 0 to 3600. 0: a run
            begins at once. Items that came while another batch ran have waited already.
        within: With it, each item begins the window anew, and in all it lasts at most so many seconds. None:
            the window is not begun anew.
        most: How many items a batch has at most, 1 to 10 000. A window ends when there are so many.
        most_waiting: How many items may wait or be run under the name, 1 to a million; more are refused, so
            that a run that does not keep up is noticed. 10 000 small items are some megabytes of the server.
        retry: How often a batch whose run raised is run again, with the same items, before its callers get
            the error and it is dropped. The next attempt follows at once: sleep in the run for a pause. Runs
            that were cut off, by a death or the loss of the lease, are not counted.
        keep: Seconds after which an item that nobody has run is dropped, 1 s to ten years. The next run says
            so in the log, and to `on_dropped`.
        serializer: How items and results travel: an object with `dumps` and `loads`. JSON needs no trust in
            others that can write to the server; pickle would.

    All who use a name give the same options. In one session, those of the last call count.

    Raises:
        TypeError, ValueError: An argument is not as it should be; before any I/O.
    """

    __slots__ = ("_name", "_settings", "_source", "_template")

    _elsewhere = "make one there, with the same arguments"

    def __init__(
        self,
        client: Any,
        name: str,
        *,
        ttl: Seconds = 30.0,
        window: Seconds = 0.0,
        within: Seconds | None = None,
        most: int = 1000,
        most_waiting: int = 10_000,
        retry: int = 0,
        keep: Seconds = 86400.0,
        serializer: Serializer = JSON,
        **unknown: Never,
    ) -> None:
        reject_unknown(LABEL, unknown, _MEANT)
        self._source = source_of(client)
        self._name = lock_name(name)
        self._template = NameTemplate(name, otherwise="give the whole name") if _has_braces(name) else None
        window_s = seconds("window", window, most=_LONGEST_WINDOW)
        within_s = optional_seconds("within", within)
        if within_s is not None and within_s < window_s:
            raise ValueError(f"within must be at least window, here {window_s:g} s, but it is {within_s:g} s")
        for function in ("dumps", "loads"):
            if not callable(getattr(serializer, function, None)):
                raise TypeError(
                    f"serializer must have dumps and loads, as aiolocks.JSON has, not {serializer!r}"
                )
        bounds = Bounds(
            most=whole_number("most", most, most=_LARGEST_BATCH),
            window_ms=milliseconds(window_s),
            within_ms=0 if within_s is None else milliseconds(within_s),
            most_waiting=whole_number("most_waiting", most_waiting, most=_MOST_WAITING),
            keep_ms=milliseconds(seconds("keep", keep, least=_SHORTEST_KEEP)),
        )
        self._settings = Settings(
            Options.checked(ttl=ttl),
            bounds,
            whole_number("retry", retry, least=0, most=_MOST_ATTEMPTS),
            serializer,
        )

    @property
    def name(self) -> str:
        """Name of the combiner, with its fields."""
        return self._name

    @property
    def ttl(self) -> float:
        """Seconds that a run lasts without a renewal."""
        return self._settings.options.ttl

    async def submit(self, item: Any, run: Callable[[Batch], Awaitable[T]], /, **fields: object) -> T:
        """Leaves an item, and gives its result when the batch that holds it is done.

        The first caller of a batch runs it, in a task of its session and in its own context; callers of its
        session get the very object, others what the serializer makes of it.

        Args:
            item: What is left: for JSON, None, bool, int, float, str, and lists and dicts of them.
            run: A coroutine function that takes the `Batch`. What it returns is the result for all its
                items, unless it sets `batch.results`, one for each. All who use a name give the same one.
            fields: The values of the fields of the name.

        Raises:
            CombinerFullError: `most_waiting` items wait; this one was not left.
            RemoteCallError: The run raised, elsewhere; in this session, the error itself.
            ResultNotKeptError: The item was done, and its result cannot be had: the serializer did not take
                it, or this caller did not reach the server for 30 s.
            LockLostError: The server has lost the item, or it was dropped after `keep`.
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`; or
                for `ttl` seconds while the item waits. The item may have been left: then it will be run.
            SessionClosedError: The session is closed, or was closed meanwhile; the item stays.
            RuntimeError: The run submits to its own name, and would wait for itself: there, use `leave`.
            TypeError, ValueError: An argument is not as it should be; before any I/O.

        Cancelled, it ends at once, and leaves its item: it will be done, here while the session is open.
        """
        check_run(run)
        combining, payload = self._combining(item, fields)
        combining.check_outside()
        result: T = await combining.submit(payload, _run_of(run))
        return result

    async def leave(self, item: Any, /, **fields: object) -> Left:
        """Leaves an item for the next run, and waits for nobody.

        It is run by the next caller of `submit`, or by a worker (`drain`).

        Args:
            item: As of `submit`.
            fields: The values of the fields of the name.

        Raises:
            CombinerFullError: `most_waiting` items wait; this one was not left.
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`. The
                item may have been left.
            SessionClosedError: The session is closed, or was closed meanwhile.
            TypeError, ValueError: An argument is not as it should be; before any I/O.

        Cancelled, it may have been left.
        """
        combining, payload = self._combining(item, fields)
        return await combining.leave(payload)

    async def drain(self, run: Callable[[Batch], Awaitable[Any]], /, **fields: object) -> None:
        """Runs what is left under a name, batch by batch, until it is cancelled: a worker.

        It is woken when an item is left, and does not poll. An error of `run` is logged, and goes to those
        who wait for that batch. An outage is logged, and the worker asks again.

        Args:
            run: As of `submit`; or the function that this combiner decorates.
            fields: The values of the fields of the name.

        Raises:
            BackendError: Redis refused for good, as without a permission.
            SessionClosedError: The session is closed, or was closed meanwhile.
            TypeError, ValueError: An argument is not as it should be; before any I/O.

        Cancelled, it begins no more runs. One under way goes on in its session, and ends with that: then the
        next runner has its batch.
        """
        check_run(run)
        engine = engine_of(self._source, self)
        combining = Combining.of(engine, self._named(fields), self._settings)
        await combining.drain(_run_of(run))

    def __call__(
        self, function: Callable[[Batch], Coroutine[Any, Any, T]]
    ) -> Callable[..., Coroutine[Any, Any, T]]:
        """Decorates the function that runs a batch: calling it with an item is `submit`.

        Raises:
            TypeError: It is not a coroutine function.
        """
        check_run(function)

        @functools.wraps(function)
        async def submitting(item: Any, /, **fields: object) -> T:
            return await self.submit(item, function, **fields)

        setattr(submitting, _RUN_OF, function)
        return submitting

    def _combining(self, item: Any, fields: dict[str, object]) -> tuple[Combining, bytes]:
        name = self._named(fields)
        payload: object = self._settings.serializer.dumps(item)
        if not isinstance(payload, bytes):
            raise TypeError(f"dumps of the serializer must give bytes, not {type(payload).__name__}")
        engine = engine_of(self._source, self)
        engine.settings.check_value(payload)
        return Combining.of(engine, name, self._settings), payload

    def _named(self, fields: dict[str, object]) -> str:
        known = () if self._template is None else self._template.fields
        if missing := [field for field in known if field not in fields]:
            raise TypeError(f"the name {self._name!r} has a field {missing[0]!r}: give {missing[0]}=...")
        if more := [field for field in fields if field not in known]:
            raise TypeError(f"the name {self._name!r} has no field {more[0]!r}")
        if self._template is None:
            return self._name
        return self._template.fill({field: text_of(value) for field, value in fields.items()})

    def __repr__(self) -> str:
        return f"<Combiner {self._name!r} ttl={self.ttl:g}>"


def _has_braces(name: str) -> bool:
    return "{" in name or "}" in name


def check_run(run: object) -> None:
    """Refuses what cannot run a batch. An object with a call of its own is seen when it is called."""
    plain: bool = inspect.isroutine(run)
    asynchronous: bool = inspect.iscoroutinefunction(run)
    if not callable(run) or (plain and not asynchronous):
        raise TypeError(f"run must be a coroutine function (async def) that takes a batch, not {run!r}")


def _run_of(run: Run) -> Run:
    """The function itself, of one that a combiner decorates."""
    found: Run = getattr(run, _RUN_OF, run)
    return found
