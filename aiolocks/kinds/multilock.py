"""Several locks at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Never, cast, final

from ..lock.acquirable import Acquirable
from ..lock.claim import Resource
from ..lock.clock import milliseconds
from ..lock.context import Context
from ..lock.lease import Lease
from ..lock.options import Metadata, OnLost, Options, Seconds, lock_name, reject_unknown
from ..transport.commands.base import NameCommands
from ..transport.commands.multi import MultiCommands

_MOST_NAMES: Final = 1000


@final
class MultiLock(Acquirable[Lease]):
    """The locks of several names, all of them or none.

    On one server all names are taken in one step. A waiter holds none of them, so it cannot take part in a
    deadlock, whatever the order of the names. Each name excludes the `Lock`, the `ReentrantLock` and every
    other `MultiLock` of that name.

    ```python
    async with MultiLock(redis, ["account:1", "account:2"]) as lease:
        ...                     # one lease, one fencing token, larger than every earlier one of each name
    ```

    In a Redis Cluster, names that share a slot, as those with a common `{hash tag}` do, are taken in one
    step. Over several slots it is not one atomic step: the slots are taken one after the other, in one order
    for all, and given back if one refuses. No lease ever holds a part of them; but for the time of a try,
    others may be refused a name that is then given back.

    It makes no promise of progress for names that are never free at the same time: a task that wants one of
    them only may always come first. Where that matters, let all take one more lock in common.

    Options that have no text here are those of `Lock`.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        names: 1 to 1000 names, in any order; one that is given twice counts once.

    Raises:
        TypeError, ValueError: An argument is not as it should be; before any I/O.
    """

    __slots__ = ("_names",)

    _label: ClassVar[str] = "MultiLock"
    _lease_type = Lease

    def __init__(
        self,
        client: Any,
        names: Iterable[str],
        *,
        ttl: Seconds = 30.0,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool = True,
        max_hold: Seconds | None = None,
        on_lost: OnLost = "cancel",
        metadata: Metadata | None = None,
        grace: Seconds = 0.0,
        **unknown: Never,
    ) -> None:
        reject_unknown("MultiLock", unknown)
        options = Options.checked(
            ttl=ttl,
            blocking_timeout=blocking_timeout,
            auto_renew=auto_renew,
            max_hold=max_hold,
            on_lost=on_lost,
            metadata=metadata,
            grace=grace,
        )
        self._names = _checked(names)
        super().__init__(client, self._names[0], options)
        self._name = ", ".join(self._names)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the locks, sorted; `name` is all of them, separated by commas."""
        return self._names

    def _all_names(self) -> tuple[str, ...]:
        return self._names

    def _rename(self, names: tuple[str, ...]) -> None:
        super()._rename(names)
        self._names = _checked(names)
        self._name = ", ".join(self._names)

    def _beside(self, engine: Context) -> str:
        return f',"names":{len(self._names)}' if len(self._names) > 1 else ""

    def _resource(self, engine: Context) -> Resource:
        make: Callable[..., NameCommands] = MultiCommands
        if engine.by_slot:
            from ..transport.commands.multislot import commands_of as make  # noqa: PLC0415 - few need it
        commands = make(
            engine.settings.prefix,
            self._names,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
        )
        return Resource(commands, ("multilock", self._names))


def _checked(names: object) -> tuple[str, ...]:
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise TypeError(f"names must be several names, as in ['a', 'b'], not {type(names).__name__}")
    found = sorted({lock_name(name, "each of the names") for name in cast("Iterable[object]", names)})
    if not 1 <= len(found) <= _MOST_NAMES:
        raise ValueError(f"names must be 1 to {_MOST_NAMES} different names, not {len(found)}")
    return tuple(found)
