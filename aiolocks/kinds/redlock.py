"""A lock that a majority of several independent servers holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Never, TypeVar, cast, final

from ..lock.acquirable import Acquirable
from ..lock.clock import milliseconds
from ..lock.engine import Engine
from ..lock.lease import Lease, Resource
from ..lock.options import Metadata, OnLost, Options, Seconds, reject_unknown, seconds
from ..lock.sources import Client, client_of, is_session, joint_engine_of
from ..transport import check_master, master_label
from ..transport.answers import Answer, Kept, Refused, Released, truth
from ..transport.quorum.acquiring import Acquiring, Newest
from ..transport.quorum.keeping import Adopting, Carried, Renewing
from ..transport.quorum.operations import Freeing, Listening, QuorumOperation, Voting
from ..transport.quorum.quorum_commands import QuorumCommand, Settling
from ..transport.request import Request, Script
from ..transport.steps.base import NameSteps
from ..transport.steps.family import Kind
from ..transport.steps.listening import listening
from ..transport.steps.lock import LOCKS, VoteSteps, told_lock
from ..transport.steps.snapshots import Holder
from ..transport.steps.standing import SEATED, STAYING, WAITING

T = TypeVar("T")

_KIND: Final = "redlock"
_SEAL: Final = Script("redlock_seal")
_CARRIED: Final = re.compile(rb"(?P<token>[0-9a-f]+):(?P<fencing>\d+):(?P<metadata>.*)", re.DOTALL)
_PART_OF_TTL: Final = 20
_LEAST: Final = 0.05
_FEWEST: Final = 3

KINDS: Final = (Kind(LOCKS, _KIND, "Redlock"),)


@final
class RedlockSteps(NameSteps):
    """The steps of one Redlock under its name.

    Args, besides the arguments for a simple lock:
        node_timeout: Seconds within which one master has to answer.
    """

    __slots__ = ("_held", "_lock", "_newest", "_node_timeout", "_one")

    def __init__(
        self, prefix: str, name: str, *, retention_ms: int, session: str, node_timeout: float
    ) -> None:
        super().__init__(retention_ms)
        self._one = VoteSteps(prefix, name, retention_ms=retention_ms, session=session, kind=_KIND)
        self._held = self._one.held
        self._lock = self._held[:1]
        self._newest = Newest()
        self._node_timeout = node_timeout

    @property
    def bell(self) -> bytes:
        return self._one.bell

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Request[Answer]:
        # A vote is no lease yet: the place in the queue is left with the confirmation.
        acquire = self._one.acquire(token, ttl_ms, metadata, standing | STAYING)
        queued = bool(standing & SEATED)
        put = partial(
            Acquiring,
            vote=acquire,
            confirm=partial(self._confirm, acquire.keys if queued else self._held, token, ttl_ms),
            undo=self._one.release(token, ttl_ms, ring=False),
            leave=self._leave(token, ttl_ms) if queued or standing & WAITING else None,
            newest=self._newest,
            queued=queued,
        )
        return QuorumCommand(
            put, acquire, node_timeout=self._node_timeout, elects=True, lasts=ttl_ms / 1000, lane=token
        )

    @property
    def freed_on(self) -> str:
        return " on a majority of the masters"

    def endless(self, refused: Refused) -> str:
        return self._one.endless(refused)

    def _holder(self, token: bytes, left_ms: int, lease: bytes) -> Holder | None:
        return told_lock(left_ms, lease)

    def listener(self, token: str) -> Request[int]:
        listen = listening([self._one.listener(token)])
        return QuorumCommand(partial(Listening, vote=listen), listen, node_timeout=self._node_timeout)

    def renew(self, token: str, ttl_ms: int) -> Request[Kept]:
        return self._renew(token, ttl_ms, heals=True)

    def renew_changed(self, token: str, ttl_ms: int) -> Request[Kept]:
        # An operator may be about to free it on a majority of masters, one after the other.
        return self._renew(token, ttl_ms, heals=False)

    def _renew(self, token: str, ttl_ms: int, *, heals: bool) -> Request[Kept]:
        renew: Request[Any] = self._one.renew(token, ttl_ms)  # a thief is told of by no majority
        put = partial(
            Renewing,
            heals=heals,
            vote=renew,
            look=Request(None, self._lock, ("GET", *self._lock), partial(_carried, token), lane=token),
            take=partial(self._one.acquire, token, ttl_ms),
            confirm=partial(self._confirm, self._held, token, ttl_ms),
        )
        command: Request[Any] = QuorumCommand(put, renew, node_timeout=self._node_timeout, lane=token)
        return command

    def watch(self, command: Request[Any]) -> None:
        assert isinstance(command, QuorumCommand)
        command.track(command.keys[:1])
        command.like.track(command.watched)

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Request[Released]:
        # A master that does not answer has until the lease's own end, in the background: a majority is enough
        # to go on.
        release = self._one.release(token, ttl_ms, ring=ring, leave=leave)
        leaving = None if leave else partial(self._one.release, token, ttl_ms, ring=ring, leave=True)
        return QuorumCommand(
            partial(Freeing, vote=release), release, leaving=leaving, node_timeout=None, lane=token
        )

    def settle(self, token: str, ttl_ms: int) -> Request[None]:
        owned, undo = self._one.owned(token), self._one.release(token, ttl_ms, ring=False)
        return Settling(owned, undo, lasts=ttl_ms / 1000)

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Request[int | None]:
        adopt, back = self._swap(old, new, ttl_ms, metadata), self._swap(new, old, ttl_ms, metadata)
        # In the lane of the giver: requests of the heir go after this, and do not take its place.
        return self._question(partial(Adopting, vote=adopt, undo=back), adopt, lane=old, lasts=ttl_ms / 1000)

    def annotate(self, token: str, metadata: str) -> Request[bool]:
        annotate = self._one.annotate(token, metadata)
        return self._question(partial(Voting, vote=annotate), annotate)

    def owned(self, token: str) -> Request[bool]:
        owned = self._one.owned(token)
        return self._question(partial(Voting, vote=owned), owned)

    def locked(self) -> Request[bool]:
        locked = self._one.locked()
        return self._question(partial(Voting, vote=locked), locked)

    def _question(
        self,
        put: Callable[[Sequence[str]], QuorumOperation[T]],
        like: Request[Any],
        *,
        lane: str = "",
        lasts: float = 0.0,
    ) -> QuorumCommand[T]:
        """A question that uses up no lease time: a master that hangs is waited for if a majority needs it."""
        return QuorumCommand(put, like, node_timeout=None, lane=lane, lasts=lasts)

    def _confirm(
        self, keys: tuple[bytes, ...], token: str, ttl_ms: int, fencing_token: int, *, given: bool = False
    ) -> Request[bool]:
        args = (token, fencing_token, self._retention(ttl_ms), int(given))
        return Request(_SEAL, keys, args, truth, lane=token)

    def _leave(self, token: str, ttl_ms: int) -> Request[Released]:
        """Frees nothing: a master that grants after all other masters must keep the lease."""
        like = self._one.release("", ttl_ms, ring=False, leave=True)
        return Request(like.script, like.keys, like.args, like.parse, lane=token)

    def _swap(self, old: str, new: str, ttl_ms: int, metadata: str) -> Request[Carried | None]:
        like = self._one.adopt(old, new, ttl_ms, metadata)
        return Request(like.script, like.keys, like.args, _adopted, lane=like.lane)


def _adopted(raw: Any) -> Carried | None:
    """Reads the fencing token as it stands on the master; empty when neither token is there."""
    return Carried(int(raw), raw.startswith(b"0"), "") if raw else None


def _carried(token: str, raw: Any) -> Carried | None:
    """Reads a lock key, if it is that token's."""
    found = _CARRIED.match(raw or b"")
    if found is None or found["token"].decode() != token:
        return None
    return Carried(
        int(found["fencing"]), found["fencing"].startswith(b"0"), found["metadata"].decode(errors="replace")
    )


# -- the class


@final
class Redlock(Acquirable[Lease]):
    """A lock that a majority of several independent masters keeps; one holder at a time.

    The lock survives the loss of the other masters. It is acquired when a majority of *all* masters, not only
    of the masters that answer, has granted it and confirmed its fencing token. Two majorities share a
    master, so a later lease always has the larger token. That takes one round trip, and two for the first
    lease of a name, or after a wait. While the lock is held, it is renewed on all
    masters, and written again to a master that was away or came back without data. It is lost when a majority
    says so, or when no majority has confirmed a renewal in time.

    ```python
    masters = [Redis(host=host) for host in ("a.example", "b.example", "c.example")]
    async with Redlock(masters, "orders:17") as lease:
        ...                     # cancelled if the lease is lost
    ```

    It assumes that clocks run at the same speed (within 1 %) and do not jump. It also assumes that a master
    which comes back without its data stays away for the longest ttl in use. If one of these is not true, two
    tasks may hold the lock at a time: let the store check `lease.fencing_token`. The algorithm is Redlock's
    (redis.io, "Distributed Locks with Redis"), with a fencing token on which a majority agrees.

    Options that are not described here are those of `Lock`.

    Args:
        clients: An odd number, at least 3, of `redis.asyncio.Redis` or `aiolocks.Session`. Each is for a
            separate server, and these are neither clusters nor replicas of each other. The settings of the
            first session count. If one of the sessions is closed, the leases and waits on all of them end.
        name: Any non-empty str of at most 1 KiB in UTF-8. A `Lock` of the same name is a separate lock.
        node_timeout: Seconds within which each master must answer; less than the ttl. Default: a twentieth of
            the ttl, at least 50 ms, so that a master that does not answer costs little of the lease.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
        ConfigurationError: From acquiring: two of the clients lead to the same server, or one to a replica.
    """

    __slots__ = ("_node_timeout", "_sources")

    _label: ClassVar[str] = "Redlock"
    _lease_type = Lease

    def __init__(
        self,
        clients: Sequence[Client],
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

    def _sources_(self) -> tuple[Any, ...]:
        return self._sources

    def _engine(self) -> Engine:
        return joint_engine_of(self._sources, self)

    def _resource(self, engine: Engine) -> Resource:
        steps = RedlockSteps(
            engine.settings.prefix,
            self._name,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
            node_timeout=self._node_timeout,
        )
        return Resource(steps, ("redlock", self._name))


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
