"""The counting semaphore."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Final, Never, Self, final

from ..lock.acquirable import AS_CONFIGURED, Acquirable, Pending, gives_pending
from ..lock.claim import QueuePolicy, Resource
from ..lock.clock import milliseconds
from ..lock.context import Context
from ..lock.lease import Lease
from ..lock.options import Metadata, OnLost, Options, Seconds, flag, reject_unknown, whole_number
from ..transport.commands.permits import PermitCommands

_FAIR: Final = QueuePolicy(strict=True, quiet=True)
_UNFAIR: Final = QueuePolicy(quiet=True)
_MOST: Final = 2**31


@final
class Semaphore(Acquirable[Lease]):
    """A number of permits, which any number of processes share.

    ```python
    crawlers = Semaphore(redis, "crawlers", 10)
    async with crawlers:                    # one permit
        ...
    async with crawlers.acquire(3):         # three at once, or none: one lease
        ...
    ```

    Each lease counts for itself and expires for itself: the permits of a holder that died are back one ttl
    later, whatever others renew. All users of a name give the same `value`. While somebody holds or waits,
    another one is refused; once nobody does, it takes the place of the former. `resize` changes how many
    permits there are for all users, while the name is in use and for 24 h after, whatever their `value`.

    Permits that come back go to waiters of the same process first, as with a `Lock`. With `fair=True`,
    waiters get them in the order in which they asked, over all processes: then no waiter for a few permits
    overtakes a waiter for many. Without it, a waiter for many may wait for as long as others take the permits
    that come back. All users of a name must agree on that, too: one that is not fair overtakes those
    that are.

    Options that have no text here are those of `Lock`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8.
        value: How many permits there are, 1 to 2**31.
        fair: Whether waiters get permits in the order in which they asked.

    Raises:
        TypeError, ValueError: An argument is not as it should be; before any I/O.
    """

    __slots__ = ("_fair", "_of_several", "_permits", "_value")

    _label: ClassVar[str] = "Semaphore"
    _lease_type = Lease

    def __init__(
        self,
        client: Any,
        name: str,
        value: int,
        *,
        fair: bool = False,
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
        reject_unknown("Semaphore", unknown)
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
        super().__init__(client, name, options)
        self._value = whole_number("value", value, most=_MOST)
        self._fair = flag("fair", fair)
        self._permits = 1
        self._of_several: dict[int, Self] = {}

    @property
    def value(self) -> int:
        """How many permits there are, as it was made; `resize` does not change this."""
        return self._value

    @property
    def fair(self) -> bool:
        """Whether waiters get permits in the order in which they asked."""
        return self._fair

    @gives_pending
    def acquire(  # noqa: D417 - there are no unknown arguments to describe
        self,
        n: int = 1,
        *positional: Never,
        blocking_timeout: Seconds | None = AS_CONFIGURED,
        steal: bool = False,
        **unknown: Never,
    ) -> Pending[Lease]:
        """Acquires `n` permits as one lease, waiting for as long as `blocking_timeout` allows.

        Args:
            n: How many permits, all at once or none: up to `value`, or up to what `resize` has set. While
                `resize` has set fewer than `n`, an `n` up to `value` waits, and a warning in the log says so.
            blocking_timeout: Seconds to wait; 0 for a single try; None for ever. Default: the semaphore's
                own.

        Raises:
            ValueError: `n` is more than `value`, and so could never be acquired.
            LockTimeoutError: Not acquired within `blocking_timeout`; it names some of the holders.
            DeadlockError: There is no `blocking_timeout`, and this very task holds too many of the permits.
            ConfigurationError: Somebody holds it or waits with another `value`.
            BackendError: Redis refused for good, or gave no answer at all: within `blocking_timeout`, or for
                `ttl` seconds where there is none.
            SessionClosedError: The session is closed, or was closed meanwhile.

        Cancelled at any point, nothing stays held, and the next waiter goes on.
        """
        several = self._several(n)
        return super(Semaphore, several).acquire(
            *positional, blocking_timeout=blocking_timeout, steal=steal, **unknown
        )

    @gives_pending
    def try_acquire(  # noqa: D417 - see above
        self, n: int = 1, *positional: Never, **unknown: Never
    ) -> Pending[Lease | None]:
        """Acquires `n` permits at once or not at all: the lease, or None. Never queues.

        Args:
            n: How many permits, all at once or none.

        Raises:
            ConfigurationError: It is in use with another `value`; or `n` is more than `value` and more than
                `resize` has set, so that no release could ever bring that many. Also a `ValueError`.
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
            SessionClosedError: The session is closed.

        Cancelled at any point, nothing stays held.
        """
        several = self._several(n)
        return super(Semaphore, several).try_acquire(*positional, **unknown)

    async def available(self) -> int:
        """How many permits could be acquired now, as the server says; 0 of a fair one while anybody waits.

        Raises:
            ConfigurationError: Somebody holds it or waits with another `value`.
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
        """
        binding = self._bind()
        return await binding.engine.ask(self._commands(binding.engine).available())

    async def resize(self, value: int) -> None:
        """Sets how many permits there are, for all users of the name, and wakes waiters that may enter now.

        Leases stay held: when there are fewer permits than before, more may be out until they come back. With
        0 the semaphore is closed: nobody gets in, waiters wait, and a later `resize` opens it. The `value`
        with which it is made stays the same.

        Args:
            value: How many, 0 to 2**31.

        Raises:
            ConfigurationError: Somebody holds it or waits with another `value`.
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
        """
        number = whole_number("value", value, least=0, most=_MOST)
        engine = self._bind().engine
        wake_own = functools.partial(engine.bells.rung, "local")
        await engine.ask(self._commands(engine).resize(number), told=wake_own)

    def _several(self, n: int) -> Self:
        """The same semaphore, of which `n` permits are one lease."""
        number = whole_number("n", n, most=_MOST)
        if number == self._permits:
            return self
        found = self._of_several.get(number)
        if found is None:
            found = self._of_several[number] = self._alike(number)
        return found

    def _bound_as(self) -> tuple[str, int, int, bool]:
        return self._name, self._permits, self._value, self._fair

    def _resource(self, engine: Context) -> Resource:
        gate_key = ("semaphore", self._name, self._permits, self._fair)
        return Resource(self._commands(engine), gate_key, _FAIR if self._fair else _UNFAIR)

    def _commands(self, engine: Context) -> PermitCommands:
        return PermitCommands(
            engine.settings.prefix,
            "semaphore",
            self._name,
            permits=self._permits,
            value=self._value,
            fair=self._fair,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
        )

    def _alike(self, permits: int) -> Self:
        alike = self._renamed((self._name,))
        alike._permits = permits  # noqa: SLF001 - of this very class
        return alike

    def _rename(self, names: tuple[str, ...]) -> None:
        super()._rename(names)
        self._of_several = {}

    def __repr__(self) -> str:
        fair = " fair" if self._fair else ""
        return f"<Semaphore {self._name!r} value={self._value}{fair} ttl={self._options.ttl:g}>"
