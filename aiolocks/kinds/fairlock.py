"""The fair lock: first come, first served."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Never, final

from ..lock.acquirable import Acquirable
from ..lock.claim import QueuePolicy, Resource
from ..lock.clock import milliseconds
from ..lock.context import Context
from ..lock.lease import Lease
from ..lock.options import Metadata, OnLost, Options, Seconds, reject_unknown
from ..transport.commands.permits import PermitCommands

_MANNER: Final = QueuePolicy(exclusive=True, strict=True, quiet=True)


@final
class FairLock(Acquirable[Lease]):
    """A lock that waiters get in the order in which they asked for it, over all processes.

    A `Lock` hands over within a process before it lets others in, which is faster. Here no waiter overtakes
    another: each hand-over may cross processes. The order is that in which the requests reach the server.

    ```python
    async with FairLock(redis, "printer"):
        ...
    ```

    A waiter keeps its place by a sign of life that its session gives. A waiter that dies, or ten of
    them, delay the next by at most the 2 s for which such a sign lasts. `try_acquire` does not overtake
    either: it is refused while anybody waits.

    It has a name space of its own: a `FairLock` and a `Lock` of one name do not know of each other.

    Options that have no text here are those of `Lock`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8.

    Raises:
        TypeError, ValueError: An argument is not as it should be; before any I/O.
    """

    __slots__ = ()

    _label: ClassVar[str] = "FairLock"
    _can_be_stolen = True
    _lease_type = Lease

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
        at_least: Seconds = 0.0,
        **unknown: Never,
    ) -> None:
        reject_unknown("FairLock", unknown)
        options = Options.checked(
            ttl=ttl,
            blocking_timeout=blocking_timeout,
            auto_renew=auto_renew,
            max_hold=max_hold,
            on_lost=on_lost,
            metadata=metadata,
            grace=grace,
            replicas=replicas,
            at_least=at_least,
        )
        super().__init__(client, name, options)

    def _bound_as(self) -> str:
        return self._name

    def _resource(self, engine: Context) -> Resource:
        commands = PermitCommands(
            engine.settings.prefix,
            "fairlock",
            self._name,
            permits=1,
            value=None,
            fair=True,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
        )
        return Resource(commands, ("fairlock", self._name), _MANNER)
