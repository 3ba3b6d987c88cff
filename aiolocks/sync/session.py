"""A session for threads. It makes the locks; the event loop of aiolocks does their work."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Never, Self, TypeVar, Unpack, final

from .. import Session as AsyncSession
from ..kinds.combiner import Combiner as AsyncCombiner
from ..kinds.latch import Latch as AsyncLatch
from ..kinds.limits import Limits as AsyncLimits
from ..kinds.lock import Lock as AsyncLock
from ..kinds.multilock import MultiLock as AsyncMultiLock
from ..kinds.permits import FairLock as AsyncFairLock
from ..kinds.permits import Semaphore as AsyncSemaphore
from ..kinds.ratelimit import RateLimit as AsyncRateLimit
from ..kinds.redlock import Redlock as AsyncRedlock
from ..kinds.reentrant import ReentrantLock as AsyncReentrantLock
from ..kinds.serializers import JSON, Serializer
from ..kinds.spans import RangeLock as AsyncRangeLock
from ..kinds.spans import RWLock as AsyncRWLock
from ..lock.context import SessionOptions
from ..lock.options import Metadata, Seconds, reject_unknown
from ..lock.statistics import SessionStatistics
from .link import Link
from .locks import Lease, Limits, Lock, OnLost, RangeLock, ReentrantLease, RWLock, Semaphore
from .misuse import SyncOnly
from .waits import Combiner, Latch, RateLimit

T = TypeVar("T")

_IGNORE: Final = "ignore"
"""A thread cannot be cancelled: `on_lost` is a function here, and its asynchronous lock cancels nobody."""

_MEANT: Final = {
    "grace": "lease.remaining(): a thread cannot be cancelled ahead of the end of its lease",
    "steal": "session.call(lambda session: session.force_release(name))",
}


@final
class Session(SyncOnly):
    """The state that all locks of a program with threads share: for scripts, Celery, RQ, Django and the like.

    ```python
    locks = Session.from_url("redis://localhost:6379", prefix="shop")  # at import: there is no I/O

    with locks.lock("order:17", ttl=10, blocking_timeout=2) as lease:
        ...  # no other thread or process has it
        lease.ensure_held()  # right before what must not be done twice
    ```

    Its locks, and those of an `aiolocks.Session` with the same server and prefix, exclude each other, also
    between processes. One event loop in a thread of its own does the work of all sessions of the process. It
    starts at the first use, renews the leases while the threads work, and ends when the last session is
    closed or the program ends. Any number of threads can use the session.

    A forked process connects anew when it uses the session. It does not have the leases of its parent.

    If an exception is raised in a thread while it waits (Ctrl-C, the time limit of a Celery task or an RQ
    job), the wait ends, and nothing stays held. At the end of a program, what its threads still hold is
    released. After `os._exit` or a kill, the ttl frees it.

    It needs threads of the operating system: gevent and eventlet are refused.

    Raises:
        TypeError, ValueError: An argument is wrong, or the URL names no server.
        ConfigurationError: gevent or eventlet has replaced threads.
    """

    _elsewhere = "use it in a forked process, or make one there"

    __slots__ = ("_link",)

    def __init__(self, source: str | Callable[[], Any], **options: Unpack[SessionOptions]) -> None:
        self._link = Link(source, options)

    @classmethod
    def from_url(cls, url: str | Callable[[], Any], **options: Unpack[SessionOptions]) -> Session:
        """Makes a session with its own client, which connects at the first use.

        Args:
            url: A URL as `aiolocks.Session.from_url` takes it, also of a cluster or of Sentinel. Or a
                function that makes a client of `redis.asyncio` or `valkey.asyncio`, for options that a URL
                cannot have. It is called in each process that uses the session.
            **options: Options of `aiolocks.Session`. Listeners are called in the thread of the event loop, so
                they must not block.

        Raises:
            TypeError, ValueError: An argument is wrong, or the URL names no server.
            ConfigurationError: gevent or eventlet has replaced threads.
        """
        return cls(url, **options)

    def __enter__(self) -> Self:
        self._link.open()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._link.close()

    def close(self) -> None:
        """Closes the session, as the end of its `with` does. After that, only `with` opens it again.

        Waiters get `SessionClosedError`. Leases of other threads become `LOST`, and these threads have at
        most 1 s to leave their blocks. What is held longer is free when its ttl has passed. A second call
        does nothing.

        Raises:
            RuntimeError: An event loop runs in this thread.
        """
        self._link.close()

    def statistics(self) -> SessionStatistics:
        """Counts: the leases and waiters of this session now, and its work since it was made. No I/O."""
        return self._link.session().statistics()

    def call(self, function: Callable[[AsyncSession], Awaitable[T]], /) -> T:
        """Calls a coroutine function with the asynchronous session, and returns its result.

        The function runs in the event loop. Use it for what has no method here:

        ```python
        held = locks.call(lambda session: session.inspect("order:*"))
        number = locks.call(lambda session: FencedRegister(session, "stock").read())
        ```

        Args:
            function: Called in the thread of the event loop, so it must not block.

        Raises:
            SessionClosedError: The session is closed.
            RuntimeError: An event loop runs in this thread.
            TypeError: The result of the function cannot be awaited.
            Exception: What the function raises.

        If an exception interrupts it, what the function awaits is cancelled.
        """
        link = self._link

        async def work() -> T:
            awaitable: object = function(link.session())
            if not inspect.isawaitable(awaitable):
                raise TypeError(
                    "call() takes a coroutine function of the asynchronous session, as in "
                    f"locks.call(lambda session: session.inspect()), and {function!r} gave {awaitable!r}"
                )
            result: T = await awaitable
            return result

        return link.ask(work)

    # -- the kinds of locks

    def lock(
        self,
        name: str,
        *,
        ttl: Seconds = 30.0,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool = True,
        max_hold: Seconds | None = None,
        on_lost: OnLost | None = None,
        metadata: Metadata | None = None,
        replicas: int = 0,
        at_least: Seconds = 0.0,
        cache: Seconds = 0.0,
        **unknown: Never,
    ) -> Lock[Lease]:
        """A lock with one holder at a time, as `aiolocks.Lock`. It is not reentrant.

        Args:
            name: Any non-empty str of at most 1 KiB in UTF-8. As a decorator, a template such as
                `"order:{order_id}"`.
            ttl: Seconds that the lease lasts without a renewal, 50 ms to ten years. Default 30 s: it outlasts
                a short outage, and a shorter one frees the name sooner after a crash.
            blocking_timeout: Seconds to wait; None, the default, for ever; 0 for a single try.
            auto_renew: Whether the lease is renewed while its process lives. Default True.
            max_hold: Seconds after which the lease is lost, whatever renewals could do. Default None, no
                limit.
            on_lost: A function that gets the `LockLostError` when the lease is lost, such as one that sets an
                event that the work checks. It is called in a thread of its own. An exception that it raises
                is logged.
            metadata: JSON values kept with the lease. Every user that can read the key can read them.
            replicas: How many replicas must have a grant before it counts (`WAIT`). Default 0.
            at_least: Seconds after the grant for which the name stays taken, even if the lease is released
                sooner. Default 0.
            cache: Seconds for which this process keeps the lease after its release, so that its next acquire
                sends nothing; as of `aiolocks.Lock`. Default 0: the lease is released at once.

        Raises:
            TypeError, ValueError: An argument is wrong; before any I/O.
        """
        reject_unknown("lock()", unknown, _MEANT)
        return Lock(
            self._link,
            lambda session: AsyncLock(
                session,
                name,
                ttl=ttl,
                blocking_timeout=blocking_timeout,
                auto_renew=auto_renew,
                max_hold=max_hold,
                on_lost=_IGNORE,
                metadata=metadata,
                replicas=replicas,
                at_least=at_least,
                cache=cache,
            ),
            Lease,
            on_lost,
        )

    def fairlock(
        self,
        name: str,
        *,
        ttl: Seconds = 30.0,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool = True,
        max_hold: Seconds | None = None,
        on_lost: OnLost | None = None,
        metadata: Metadata | None = None,
        replicas: int = 0,
        at_least: Seconds = 0.0,
        **unknown: Never,
    ) -> Lock[Lease]:
        """A lock that waiters get in the order in which they asked for it, as `aiolocks.FairLock`.

        Options are those of `lock`, and errors are the same.
        """
        reject_unknown("fairlock()", unknown, _MEANT)
        return Lock(
            self._link,
            lambda session: AsyncFairLock(
                session,
                name,
                ttl=ttl,
                blocking_timeout=blocking_timeout,
                auto_renew=auto_renew,
                max_hold=max_hold,
                on_lost=_IGNORE,
                metadata=metadata,
                replicas=replicas,
                at_least=at_least,
            ),
            Lease,
            on_lost,
        )

    def reentrantlock(
        self,
        name: str,
        *,
        owner: str | None = None,
        ttl: Seconds = 30.0,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool = True,
        max_hold: Seconds | None = None,
        on_lost: OnLost | None = None,
        metadata: Metadata | None = None,
        **unknown: Never,
    ) -> Lock[ReentrantLease]:
        """A lock that its holder can acquire again, as `aiolocks.ReentrantLock`.

        Other options are those of `lock`, and errors are the same.

        Args:
            name: As of `lock`.
            owner: The owner, as a non-empty str of at most 1 KiB. Default None: the thread that acquires.
        """
        reject_unknown("reentrantlock()", unknown, _MEANT)
        return Lock(
            self._link,
            lambda session: AsyncReentrantLock(
                session,
                name,
                owner=owner,
                ttl=ttl,
                blocking_timeout=blocking_timeout,
                auto_renew=auto_renew,
                max_hold=max_hold,
                on_lost=_IGNORE,
                metadata=metadata,
            ),
            ReentrantLease,
            on_lost,
        )

    def multilock(
        self,
        names: Iterable[str],
        *,
        ttl: Seconds = 30.0,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool = True,
        max_hold: Seconds | None = None,
        on_lost: OnLost | None = None,
        metadata: Metadata | None = None,
        **unknown: Never,
    ) -> Lock[Lease]:
        """The locks of several names, all of them or none, as `aiolocks.MultiLock`.

        Other options are those of `lock`, and errors are the same.

        Args:
            names: 1 to 1000 names, in any order. A name that is given twice counts once.
        """
        reject_unknown("multilock()", unknown, _MEANT)
        given = names if isinstance(names, (str, bytes)) or not isinstance(names, Iterable) else [*names]  # pyright: ignore[reportUnnecessaryIsInstance]
        return Lock(
            self._link,
            lambda session: AsyncMultiLock(
                session,
                given,
                ttl=ttl,
                blocking_timeout=blocking_timeout,
                auto_renew=auto_renew,
                max_hold=max_hold,
                on_lost=_IGNORE,
                metadata=metadata,
            ),
            Lease,
            on_lost,
        )

    def semaphore(
        self,
        name: str,
        value: int,
        *,
        fair: bool = False,
        ttl: Seconds = 30.0,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool = True,
        max_hold: Seconds | None = None,
        on_lost: OnLost | None = None,
        metadata: Metadata | None = None,
        replicas: int = 0,
        **unknown: Never,
    ) -> Semaphore:
        """A number of permits that all processes share, as `aiolocks.Semaphore`.

        Other options are those of `lock`, and errors are the same.

        Args:
            name: As of `lock`.
            value: How many permits there are, 1 to 2**31.
            fair: Whether waiters get permits in the order in which they asked. Default False, which is
                faster.
        """
        reject_unknown("semaphore()", unknown, _MEANT)
        return Semaphore(
            self._link,
            lambda session: AsyncSemaphore(
                session,
                name,
                value,
                fair=fair,
                ttl=ttl,
                blocking_timeout=blocking_timeout,
                auto_renew=auto_renew,
                max_hold=max_hold,
                on_lost=_IGNORE,
                metadata=metadata,
                replicas=replicas,
            ),
            Lease,
            on_lost,
        )

    def limits(
        self,
        name: str,
        keys: Mapping[str, int],
        *,
        ttl: Seconds = 30.0,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool = True,
        max_hold: Seconds | None = None,
        on_lost: OnLost | None = None,
        metadata: Metadata | None = None,
        replicas: int = 0,
        **unknown: Never,
    ) -> Limits:
        """One permit of each of several keys, or none, as `aiolocks.Limits`.

        Other options are those of `lock`, and errors are the same.

        Args:
            name: As of `lock`. Limits of different names share nothing.
            keys: 1 to 8 keys, each with its cap: how many leases may hold that key, 1 to 2**31.
        """
        reject_unknown("limits()", unknown, _MEANT)
        return Limits(
            self._link,
            lambda session: AsyncLimits(
                session,
                name,
                keys,
                ttl=ttl,
                blocking_timeout=blocking_timeout,
                auto_renew=auto_renew,
                max_hold=max_hold,
                on_lost=_IGNORE,
                metadata=metadata,
                replicas=replicas,
            ),
            Lease,
            on_lost,
        )

    def rwlock(
        self,
        name: str,
        *,
        ttl: Seconds = 30.0,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool = True,
        max_hold: Seconds | None = None,
        on_lost: OnLost | None = None,
        metadata: Metadata | None = None,
        replicas: int = 0,
        **unknown: Never,
    ) -> RWLock:
        """Many readers at a time, or one writer, as `aiolocks.RWLock`: `with locks.rwlock("stock").reader:`.

        Options are those of `lock`, and errors are the same.
        """
        reject_unknown("rwlock()", unknown, _MEANT)
        return RWLock(
            self._link,
            lambda session: AsyncRWLock(
                session,
                name,
                ttl=ttl,
                blocking_timeout=blocking_timeout,
                auto_renew=auto_renew,
                max_hold=max_hold,
                on_lost=_IGNORE,
                metadata=metadata,
                replicas=replicas,
            ),
            on_lost,
        )

    def rangelock(
        self,
        name: str,
        *,
        bounds: Literal["[)", "[]"] = "[)",
        ttl: Seconds = 30.0,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool = True,
        max_hold: Seconds | None = None,
        on_lost: OnLost | None = None,
        metadata: Metadata | None = None,
        **unknown: Never,
    ) -> RangeLock:
        """Many readers or one writer of each interval, as `aiolocks.RangeLock`.

        `with locks.rangelock("book:7").writer(10, 20):`. Other options are those of `lock`, and errors are
        the same.

        Args:
            name: As of `lock`.
            bounds: `"[)"`, the default: an interval does not contain its upper end. `"[]"`: it contains it.
        """
        reject_unknown("rangelock()", unknown, _MEANT)
        return RangeLock(
            self._link,
            lambda session: AsyncRangeLock(
                session,
                name,
                bounds=bounds,
                ttl=ttl,
                blocking_timeout=blocking_timeout,
                auto_renew=auto_renew,
                max_hold=max_hold,
                on_lost=_IGNORE,
                metadata=metadata,
            ),
            on_lost,
        )

    def redlock(
        self,
        others: Sequence[Session],
        name: str,
        *,
        node_timeout: Seconds | None = None,
        ttl: Seconds = 30.0,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool = True,
        max_hold: Seconds | None = None,
        on_lost: OnLost | None = None,
        metadata: Metadata | None = None,
        **unknown: Never,
    ) -> Lock[Lease]:
        """A lock that a majority of independent masters keeps, as `aiolocks.Redlock`.

        Other options are those of `lock`, and errors are the same.

        Args:
            others: The sessions of the other masters, an even number of them. With this session they are an
                odd number, at least 3.
            name: As of `lock`. A `lock` of the same name is a separate lock.
            node_timeout: Seconds within which each master must answer; less than the ttl. Default: a
                twentieth of the ttl, at least 50 ms.
        """
        reject_unknown("redlock()", unknown, _MEANT)
        given: object = others
        if not isinstance(given, Sequence) or not all(isinstance(one, Session) for one in others):
            raise TypeError(
                f"others must be sessions of aiolocks.sync, one for each other master, not {others!r}"
            )
        links = [one._link for one in others]  # noqa: SLF001 - its own class
        return Lock(
            self._link,
            lambda session: AsyncRedlock(
                [session, *(link.session() for link in links)],
                name,
                node_timeout=node_timeout,
                ttl=ttl,
                blocking_timeout=blocking_timeout,
                auto_renew=auto_renew,
                max_hold=max_hold,
                on_lost=_IGNORE,
                metadata=metadata,
            ),
            Lease,
            on_lost,
            links,
        )

    # -- what is waited for, and not held

    def combiner(
        self,
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
    ) -> Combiner:
        """Work that callers leave, and that one caller does for all, as `aiolocks.Combiner`.

        Args:
            name: As of `aiolocks.Combiner`, and so are the others.
            ttl: Seconds that a run lasts without a renewal. Default 30 s.
            window: Seconds for which items are collected before a run. Default 0.
            within: Each item begins the window again, for at most these seconds in all. Default None: it does
                not.
            most: How many items a batch has at most. Default 1 000.
            most_waiting: How many items may wait. Default 10 000.
            retry: How often a batch is run again if its run raised. Default 0.
            keep: Seconds after which an item is dropped if no run has taken it. Default 86 400, a day.
            serializer: Turns items and results into bytes. Default `JSON`.

        Raises:
            TypeError, ValueError: An argument is wrong; before any I/O.
        """
        reject_unknown("combiner()", unknown, _MEANT)
        return Combiner(
            self._link,
            lambda session: AsyncCombiner(
                session,
                name,
                ttl=ttl,
                window=window,
                within=within,
                most=most,
                most_waiting=most_waiting,
                retry=retry,
                keep=keep,
                serializer=serializer,
            ),
        )

    def latch(self, name: str, count: int, *, ttl: Seconds = 3600.0, **unknown: Never) -> Latch:
        """A number of steps, after which all waiting threads go on, as `aiolocks.Latch`.

        Args:
            name: As of `lock`.
            count: How many steps open it, 1 to a billion.
            ttl: Seconds that it lasts after its last use, 1 s to ten years. Default 3600, an hour.

        Raises:
            TypeError, ValueError: An argument is wrong; before any I/O.
        """
        reject_unknown("latch()", unknown, _MEANT)
        return Latch(self._link, lambda session: AsyncLatch(session, name, count, ttl=ttl))

    def ratelimit(
        self, name: str, limit: int, per: Seconds, *, burst: int | None = None, **unknown: Never
    ) -> RateLimit:
        """A number of requests in a number of seconds, for all processes together, as `aiolocks.RateLimit`.

        Args:
            name: As of `lock`.
            limit: Requests that are admitted in each `per`, in the long run.
            per: Seconds, 1 ms to ten years.
            burst: Requests that are admitted at once after a rest. Default: `limit`.

        Raises:
            TypeError, ValueError: An argument is wrong; before any I/O.
        """
        reject_unknown("ratelimit()", unknown, _MEANT)
        return RateLimit(
            self._link, lambda session, name: AsyncRateLimit(session, name, limit, per, burst=burst), name
        )

    def __repr__(self) -> str:
        if self._link.closed:
            return "<sync Session closed>"
        return f"<sync {repr(self._link.session())[1:]}"
