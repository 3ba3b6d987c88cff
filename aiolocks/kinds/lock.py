"""The simple lock: one holder."""

from __future__ import annotations

from typing import ClassVar, Final, Never, final

from ..lock.acquirable import Acquirable
from ..lock.clock import milliseconds
from ..lock.engine import Engine
from ..lock.lease import Binding, Lease, Resource
from ..lock.options import Metadata, OnLost, Options, Seconds, reject_unknown
from ..lock.sources import Client
from ..lock.tenure import KeptBinding
from ..transport.steps.family import Kind
from ..transport.steps.lock import LOCKS, KeptSteps, LockSteps

KINDS: Final = (Kind(LOCKS, "lock", "Lock"),)


@final
class Lock(Acquirable[Lease]):
    """One holder at a time, among all processes that use the same server, prefix and name.

    A `Lock` is a description: it is cheap and immutable, and any number of tasks can share it. To acquire it
    gives a `Lease`. It is not reentrant: a task that holds it and acquires it again gets a `DeadlockError`,
    because it would wait for itself.

    ```python
    async with Lock(redis, "orders:17") as lease:
        ...                     # cancelled if the lease is lost
    ```

    While the lock is held, the lease is renewed after each third of its ttl. If the holder dies, the lease
    ends after at most one ttl. A holder that was suspended may not notice at once that its lease has ended,
    and no lock with a ttl can promise that. If this would do harm, let the store check `lease.fencing_token`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8.
        ttl: Seconds that the lease lasts without a renewal, 50 ms to ten years. 30 s outlasts a short
            outage; a shorter one frees the name sooner after a crash.
        blocking_timeout: Seconds to wait; None for ever, 0 for a single try.
        auto_renew: Whether the lease is renewed while its holder lives.
        max_hold: Seconds after which the lease is lost whatever renewals could do; None for no limit.
        on_lost: `"cancel"` ends the body with `LockLostError` when the lease is lost; `"ignore"` lets it go
            on.
        grace: Seconds before the end of the lease at which the body is cancelled if the lease could not be
            renewed, or when `max_hold` ends it: 0 to half of the ttl and of `max_hold`. The body ends while
            the lock is still held, and `LockLostError` says that `grace` began. If the body takes longer than
            `grace`, an error is logged. 0: the body is cancelled when the lease is lost.
        metadata: JSON values kept with the lease, readable by everybody who can read the key.
        replicas: How many replicas must have a grant before it counts (`WAIT`), within `blocking_timeout` and
            the session's `command_timeout`; otherwise it is given back and `BackendError` says how many had
            it. 0: none. A failover to a replica that has the lock keeps it. Renewals do not wait for
            replicas, nor does a try that is refused. A single try that is granted is given back at once if
            the server says that fewer replicas are connected (`INFO`, if the user may).
        at_least: Seconds after the grant for which the name stays taken, even if the lease is released
            sooner: 0 to the ttl (and to `max_hold`). After the release the name has no holder, and the
            server's clock ends this time. If processes start a short job within this time of one another, it
            runs once. The name of a process that dies is free after the ttl.
        cache: Seconds for which the session keeps the lease after its release, so that its next acquire of
            this name sends nothing: 0 (the default: not at all) to a third of the ttl. The lease of each such
            acquire has a fencing token of its own. Another session that asks gets the name at once. A process
            that is killed within this time after its last release blocks the name for the rest of the ttl.
            The session keeps the lease from the second use of the name within this time on. It needs a server
            that tells of changes (`wakeup="tracking"`); else the lease is released at once, and the log says
            so once. Not together with `at_least`, `max_hold`, `replicas` or `auto_renew=False`, nor for
            `acquire(steal=True)`.
        confirm: Whether the end of an `async with`, or of a decorated call, waits until the server has
            confirmed the release. False: it writes the release and goes on, which saves a round trip. What
            only the server knows, such as a loss, is then told after the end: by the log, by `on_lost` of a
            listener and by `lease.wait_released()`. `lease.release()` always waits. Not together with
            `replicas`; with `cache` it has no effect.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
        ConfigurationError: `confirm=False` together with `replicas`; before any I/O.
    """

    __slots__ = ()

    _label: ClassVar[str] = "Lock"
    _can_be_stolen = True
    _lease_type = Lease

    def __init__(
        self,
        client: Client,
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
        cache: Seconds = 0.0,
        confirm: bool = True,
        **unknown: Never,
    ) -> None:
        reject_unknown("Lock", unknown)
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
            cache=cache,
            confirm=confirm,
        )
        super().__init__(client, name, options)

    def _bound_as(self) -> str:
        return self._name

    def _bound(self, engine: Engine) -> Binding[Lease]:
        if not self._options.cache:
            return super()._bound(engine)
        return KeptBinding(
            engine,
            self._resource(engine),
            self._lease_type,
            label=self._label,
            name=self._name,
            options=self._options,
        )

    def _check_steal(self, blocking_timeout: object) -> None:
        super()._check_steal(blocking_timeout)
        if self._options.cache:
            raise ValueError("a Lock with a cache= cannot steal: use one of the same name without it")

    def _resource(self, engine: Engine) -> Resource:
        steps = (KeptSteps if self._options.cache else LockSteps)(
            engine.settings.prefix,
            self._name,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
        )
        # The gate is shared with other kinds of the same name space: one holder for all of them.
        return Resource(steps, ("lock", self._name))
