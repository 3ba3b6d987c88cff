"""The reader-writer lock in three phases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Never, final

from ..lock.options import Metadata, OnLost, Options, Seconds, reject_unknown
from .spans import EVERYTHING, Span, SpanClass, SpanLease, SpanLock, UpgradableLease, WriterLease

_SPAN_CLASS: Final = SpanClass("RWLock")


@final
class RWLock:
    """Many readers at a time, or one writer; beside readers one upgradable holder, which may become a writer.

    ```python
    lock = RWLock(redis, "catalogue")
    async with lock.reader:
        ...                                     # beside other readers
    async with lock.writer:
        ...                                     # alone
    async with lock.upgradable as lease:
        plan = await read()                     # beside readers, and nobody else can write
        async with lease.upgrade() as writer:   # waits for the readers inside to leave
            await write(plan, writer.fencing_token)
    ```

    | inside | a reader | an upgradable | a writer |
    |---|---|---|---|
    | reader | enters | enters | waits |
    | upgradable | enters | waits | waits |
    | writer | waits | waits | waits |

    Writers and upgradables enter in the order of asking. While nothing but readers is in the way of a writer
    that waits, it *reserves*: new readers wait, those inside leave, and the writer enters. When it leaves,
    the readers that waited meanwhile enter before the next writer does. So neither side starves. Behind an
    upgradable, a writer that waits keeps no reader out. A place in the order has a lease of its own, 2 s: a
    waiter that dies holds up nobody for longer.

    A reader inside a reader of the same task can deadlock: if a writer has reserved between the two, the
    inner one waits for the writer, and the writer for the outer one. The task then gets a `DeadlockError`.
    Pass the lease on instead.

    Options that have no text here are those of `Lock`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8.

    Raises:
        TypeError, ValueError: An argument is not as it should be; before any I/O.
    """

    __slots__ = ("_reader", "_upgradable", "_writer")

    def __init__(
        self,
        client: Any,
        name: str,
        *,
        ttl: Seconds = 30.0,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool = True,
        max_hold: Seconds | None = None,
        on_lost: OnLost = "cancel",
        metadata: Metadata | None = None,
        grace: Seconds = 0.0,
        replicas: int = 0,
        **unknown: Never,
    ) -> None:
        reject_unknown("RWLock", unknown)
        options = Options.checked(
            ttl=ttl,
            blocking_timeout=blocking_timeout,
            auto_renew=auto_renew,
            max_hold=max_hold,
            on_lost=on_lost,
            metadata=metadata,
            grace=grace,
            replicas=replicas,
        )

        def mode(letter: str, lease_type: Any) -> Any:
            span = Span(letter, *EVERYTHING)
            return SpanLock(client, name, options, span_class=_SPAN_CLASS, span=span, lease_type=lease_type)

        self._reader: SpanLock[SpanLease] = mode("r", SpanLease)
        self._upgradable: SpanLock[UpgradableLease] = mode("u", UpgradableLease)
        self._writer: SpanLock[WriterLease] = mode("w", WriterLease)

    @property
    def name(self) -> str:
        """Name of the lock."""
        return self._reader.name

    @property
    def reader(self) -> SpanLock[SpanLease]:
        """Shared with other readers and with the upgradable holder."""
        return self._reader

    @property
    def upgradable(self) -> SpanLock[UpgradableLease]:
        """Beside readers, one at a time; its lease has `upgrade()`."""
        return self._upgradable

    @property
    def writer(self) -> SpanLock[WriterLease]:
        """Alone; its lease has `downgrade()`."""
        return self._writer

    if not TYPE_CHECKING:  # to a type checker, there is no such attribute

        def __getattr__(self, name: str) -> Never:
            raise AttributeError(
                f"RWLock has no attribute {name!r}: what is acquired is its .reader, .upgradable or .writer"
            )

    def __repr__(self) -> str:
        return repr(self._reader).replace(".reader", "", 1)
