"""The simple lock: one holder."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar, Never, final

from .._core.acquirable import Acquirable
from .._core.arguments import Metadata, OnLost, Options, Seconds, reject_slips
from .._core.claim import Claim
from .._core.clock import milliseconds
from .._core.engine import Engine
from .._transport import Answer, Command, LockCommands, Released


@final
class Lock(Acquirable):
    """One holder at a time, among all processes that use the same server, prefix and name.

    A `Lock` is a description: cheap, immutable, to be made anywhere and shared by any number of tasks. What
    acquiring gives is a `Lease`. It is not reentrant: a holder that acquires again waits for itself.

    ```python
    async with Lock(redis, "orders:17") as lease:
        ...                     # cancelled if the lease is lost
    ```

    While it is held, the lease is renewed every third of its ttl, and ends by itself one ttl after the
    holder died. No lock with a ttl can promise that a holder which was paused notices at once that its time
    has passed: where that matters, let the store check `lease.fencing_token`.

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
        metadata: JSON values that stand beside the lease, readable by whoever can read the key.

    Raises:
        TypeError, ValueError: An argument is not as it should be; before any I/O.
    """

    __slots__ = ()

    _kind: ClassVar[str] = "lock"

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
        **slips: Never,
    ) -> None:
        reject_slips("Lock", slips)
        options = Options.checked(
            ttl=ttl,
            blocking_timeout=blocking_timeout,
            auto_renew=auto_renew,
            max_hold=max_hold,
            on_lost=on_lost,
            metadata=metadata,
        )
        super().__init__(client, name, options)

    def _resource(self, engine: Engine) -> _LockResource:
        settings = engine.settings
        commands = LockCommands(
            settings.prefix,
            self._name,
            retention_ms=milliseconds(settings.fence_retention),
            session=engine.session_id,
        )
        return _LockResource(commands, self._name, milliseconds(self._options.ttl))


@final
class _LockResource:
    __slots__ = ("_commands", "_ttl_ms", "gate_key")

    def __init__(self, commands: LockCommands, name: str, ttl_ms: int) -> None:
        self._commands = commands
        self._ttl_ms = ttl_ms
        # Shared with the other kinds of the same name space: one holder for all of them.
        self.gate_key: Hashable = ("lock", name)

    def claim(self, token: str, metadata: str) -> Claim:
        return _LockClaim(self._commands, token, metadata, self._ttl_ms)

    @property
    def bell(self) -> bytes:
        return self._commands.bell

    def arm(self, lane: str) -> Command[bool]:
        return self._commands.arm(lane)

    def locked(self) -> Command[bool]:
        return self._commands.locked()

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Command[int | None]:
        return self._commands.adopt(old, new, ttl_ms, metadata)


@final
class _LockClaim:
    __slots__ = ("_commands", "_metadata", "_ttl_ms", "token")

    def __init__(self, commands: LockCommands, token: str, metadata: str, ttl_ms: int) -> None:
        self._commands = commands
        self._metadata = metadata
        self._ttl_ms = ttl_ms  # what was asked for last
        self.token = token

    def acquire(self, ttl_ms: int, *, queued: bool, in_turn: bool) -> Command[Answer]:
        self._ttl_ms = ttl_ms
        return self._commands.acquire(self.token, ttl_ms, self._metadata, queued=queued, in_turn=in_turn)

    def renew(self, ttl_ms: int) -> Command[bool]:
        self._ttl_ms = ttl_ms
        return self._commands.renew(self.token, ttl_ms)

    def release(self, *, ring: bool = True, leave: bool = False) -> Command[Released]:
        return self._commands.release(self.token, self._ttl_ms, ring=ring, leave=leave)

    def owned(self) -> Command[bool]:
        return self._commands.owned(self.token)
