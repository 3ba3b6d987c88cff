"""A lock that a majority of several independent servers holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Never, cast, final

from ..lock.acquirable import Acquirable
from ..lock.claim import Resource
from ..lock.clock import milliseconds
from ..lock.context import Context
from ..lock.lease import Lease
from ..lock.options import Metadata, OnLost, Options, Seconds, reject_unknown, seconds
from ..lock.sources import client_of, is_session, joint_engine_of
from ..transport import check_master, master_label
from ..transport.commands.redlock import RedlockCommands

_PART_OF_TTL: Final = 20
_LEAST: Final = 0.05
_FEWEST: Final = 3


@final
class Redlock(Acquirable[Lease]):
    """One holder at a time, kept by a majority of several independent masters.

    The lock outlives the loss of the others. It is acquired when a majority of *all* masters, not just of
    those that answer, has granted it and then confirmed its fencing token; two majorities share a master, so
    that a later lease always has the larger token. While it is held, it is renewed on all masters, and put
    back where a master was away or came back empty. It is lost when a majority says so, or when no majority
    has confirmed a renewal in time.

    ```python
    masters = [Redis(host=host) for host in ("a.example", "b.example", "c.example")]
    async with Redlock(masters, "orders:17") as lease:
        ...                     # cancelled if the lease is lost
    ```

    It assumes that clocks run alike (within 1 %) and do not jump, and that a master which comes back without
    its data stays away for the longest ttl in use. Where either is not so, two may hold it at a time: let the
    store check `lease.fencing_token`. The algorithm is Redlock's (redis.io, "Distributed Locks with Redis"),
    with a second phase for the fencing token.

    Options that have no text here are those of `Lock`.

    Args:
        clients: An odd number, at least 3, of `redis.asyncio.Redis` or `aiolocks.Session`, each for a server
            of its own, neither a cluster nor replicas of each other. Settings are those of the first session;
            a program that closes one of the sessions ends the leases and the waiting on all of them.
        name: Any non-empty str of at most 1 KiB in UTF-8. A `Lock` of the same name does not know of it.
        node_timeout: Seconds within which each master has to answer; less than the ttl. Default: a twentieth
            of the ttl, at least 50 ms, so that one that hangs takes little from the lease.

    Raises:
        TypeError, ValueError: An argument is not as it should be; before any I/O.
        ConfigurationError: From acquiring, if two of the clients lead to the same server, or one to a
            replica.
    """

    __slots__ = ("_node_timeout", "_sources")

    _label: ClassVar[str] = "Redlock"
    _lease_type = Lease

    def __init__(
        self,
        clients: Sequence[Any],
        name: str,
        *,
        node_timeout: Seconds | None = None,
        ttl: Seconds = 30.0,
        blocking_timeout: Seconds | None = None,
        auto_renew: bool = True,
        max_hold: Seconds | None = None,
        on_lost: OnLost = "cancel",
        metadata: Metadata | None = None,
        grace: Seconds = 0.0,
        **unknown: Never,
    ) -> None:
        reject_unknown("Redlock", unknown)
        options = Options.checked(
            ttl=ttl,
            blocking_timeout=blocking_timeout,
            auto_renew=auto_renew,
            max_hold=max_hold,
            on_lost=on_lost,
            metadata=metadata,
            grace=grace,
        )
        self._sources = _checked(clients)
        self._node_timeout = _node_timeout(node_timeout, options)
        super().__init__(self._sources[0], name, options)

    def _engine(self) -> Context:
        return joint_engine_of(self._sources, self)

    def _resource(self, engine: Context) -> Resource:
        commands = RedlockCommands(
            engine.settings.prefix,
            self._name,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
            node_timeout=self._node_timeout,
        )
        return Resource(commands, ("redlock", self._name))


def _node_timeout(value: Seconds | None, options: Options) -> float:
    if value is None:
        return max(options.first_ttl / _PART_OF_TTL, _LEAST)
    given = seconds("node_timeout", value, least=0.001)
    if given >= options.first_ttl:
        raise ValueError(
            f"node_timeout must be less than the ttl, {options.first_ttl:g} s, or nothing of the lease "
            f"is left when a master hangs, not {given:g}"
        )
    return given


def _checked(clients: object) -> tuple[Any, ...]:
    if is_session(clients) or hasattr(clients, "execute_command"):
        raise TypeError(
            "clients must be several clients, as in [a, b, c], one for each master; for one, use Lock"
        )
    if isinstance(clients, (str, bytes)) or not isinstance(clients, Sequence):
        raise TypeError(f"clients must be a sequence of clients, not {type(clients).__name__}")
    sources: tuple[Any, ...] = tuple(cast("Sequence[Any]", clients))  # type: ignore[redundant-cast]
    for source in sources:
        check_master(client_of(source))
    number = len(sources)
    if number < _FEWEST or number % 2 == 0:
        raise ValueError(
            f"clients must be an odd number of masters, at least {_FEWEST}, not {number}: "
            "an even one outlives no more failures than one less, and splits into halves"
        )
    labels: set[str] = set()
    for source in sources:
        label = master_label(client_of(source))
        if label in labels:
            raise ValueError(f"clients must lead to different servers, and {label} is there twice")
        labels.add(label)
    return sources
