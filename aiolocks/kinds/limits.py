"""Limits: permits of several keys at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Never, cast, final

from ..lock.acquirable import Acquirable
from ..lock.claim import QueuePolicy, Resource
from ..lock.clock import milliseconds
from ..lock.context import Context
from ..lock.lease import Lease
from ..lock.options import Metadata, OnLost, Options, Seconds, lock_name, reject_unknown, whole_number
from ..transport.commands.limits import KIND, LimitsCommands

_MANNER: Final = QueuePolicy(strict=True)
_MOST_KEYS: Final = 8
LONGEST: Final = 256
_MOST: Final = 2**31


@final
class Limits(Acquirable[Lease]):
    """A permit of each of several keys, or none: a total for all, and a smaller limit for each tenant.

    ```python
    limits = Limits(redis, "exports", {"all": 20, f"tenant:{tenant}": 1})
    async with limits:          # one lease: a permit of "all", and one of this tenant
        ...
    ```

    No key ever has more permits out than its cap, and the keys of one name live in one cluster slot, so that
    all of them are taken in one step.

    It is fair between keys. Waiters for the same keys form a line. Within a line the first that came is the
    first to enter, over all processes. Between lines the turn goes round: a line that has had its turn goes
    behind every other line that could enter. So a tenant with 1000 waiters delays another tenant by one turn
    at most. A line of which a key is full waits for that key, and keeps nobody else from entering.

    That holds where keys nest, as total, region and tenant do: then a permit of a narrow key comes back
    together with one of each wider key. Of keys that overlap otherwise, as {a, b} with {b, c} and {a, c}, a
    line whose keys are never free at the same time may wait for ever, as with `MultiLock`.

    Each acquire brings its own caps, and the server keeps none. While processes bring different caps for
    one key, as they do in a rolling update, each acquire is refused when as many permits are out as its own
    cap says. So the largest of the caps bounds the key, and waiters with a smaller one wait until fewer
    permits are out.

    Options that have no text here are those of `Lock`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8. Limits of different names share nothing.
        keys: 1 to 8 keys, each with its cap: how many leases may hold that key, 1 to 2**31. A key is any
            non-empty str of at most 256 bytes in UTF-8. The order says nothing.

    Raises:
        TypeError, ValueError: An argument is not as it should be; before any I/O.

    A waiter that is cancelled, or whose time is over, leaves its line, and takes nothing with it. When a
    process dies, its permits come back one ttl later, and a waiter of it that has just been called delays
    those keys by 2 s at most.
    """

    __slots__ = ("_keys",)

    _label: ClassVar[str] = "Limits"
    _lease_type = Lease

    def __init__(
        self,
        client: Any,
        name: str,
        keys: Mapping[str, int],
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
        reject_unknown("Limits", unknown)
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
        self._keys = checked_keys(keys)
        super().__init__(client, name, options)

    @property
    def keys(self) -> dict[str, int]:
        """The keys, each with its cap."""
        return dict(self._keys)

    async def in_use(self) -> dict[str, int]:
        """How many permits of each of these keys are out, as the server says.

        A permit that is kept for a waiter that has just been called counts.

        Raises:
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
        """
        engine = self._bind().engine
        return (await engine.ask(self._commands(engine).used())).held

    def _resource(self, engine: Context) -> Resource:
        commands = self._commands(engine)
        return Resource(commands, (KIND, self._name, commands.line), _MANNER)

    def _commands(self, engine: Context) -> LimitsCommands:
        return LimitsCommands(
            engine.settings.prefix,
            self._name,
            self._keys,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
        )

    def _all_names(self) -> tuple[str, ...]:
        return (self._name, *self._keys)

    def _rename(self, names: tuple[str, ...]) -> None:
        super()._rename(names)
        filled: dict[str, int] = {}
        for one, cap in zip(names[1:], self._keys.values(), strict=True):
            filled[one] = min(cap, filled.get(one, cap))  # two of them may have become the same
        self._keys = checked_keys(filled)

    def __repr__(self) -> str:
        return f"<Limits {self._name!r} {self._keys} ttl={self._options.ttl:g}>"


def checked_keys(keys: object) -> dict[str, int]:
    """Keys and caps, each as it should be.

    Raises:
        TypeError, ValueError: One is not.
    """
    if not isinstance(keys, Mapping):
        raise TypeError(
            f"keys must be a dict of caps, as in {{'all': 20, 'tenant:7': 1}}, not {type(keys).__name__}"
        )
    given = cast("Mapping[object, object]", keys)
    if not 1 <= len(given) <= _MOST_KEYS:
        raise ValueError(f"keys must be 1 to {_MOST_KEYS} keys, not {len(given)}")
    found = {
        lock_name(one, "each of the keys"): whole_number(f"the cap of {one!r}", cap, most=_MOST)
        for one, cap in given.items()
    }
    for one in found:
        if len(one.encode()) > LONGEST:
            raise ValueError(f"a key must have at most {LONGEST} bytes in UTF-8, not {len(one.encode())}")
    return found
