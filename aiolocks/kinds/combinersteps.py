"""The steps of a combiner: items are left, one runs a batch of them, and tells the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

from ..errors import LockError
from ..transport.answers import Answer, Granted, Refused, Released, released, truth
from ..transport.commands.checks import of_others, wrong_types
from ..transport.commands.family import Family, Kind
from ..transport.commands.listening import Listener
from ..transport.commands.lock import FORCE_LOCK, LOCKS, LockSteps, read_locks
from ..transport.commands.snapshots import Content, Snapshot, whole_number
from ..transport.commands.standing import SEATED, WAITING, letters
from ..transport.keys import key
from ..transport.request import Argument, Command, Script

_SHARED: Final = ("forms", "bells", "fence", "locks", "combiners")
_PUT: Final = Script("combiner_put", *_SHARED)
_ACQUIRE: Final = Script("combiner_acquire", *_SHARED, "combiner_hand_out", "seats")
_TAKE: Final = Script("combiner_take", *_SHARED, "combiner_hand_out")
_ANSWER: Final = Script("combiner_answer", *_SHARED)
_ACK: Final = Script("combiner_ack", *_SHARED)

PIECE: Final = 50
"""Items or answers in one request, at most: it takes the server less than 1 ms."""
PIECE_BYTES: Final = 65_536
"""Bytes after which a request has no more of them."""
_KNOWN_MS: Final = 60_000
"""For how long the server knows that it has had a put, at least: longer than one is sent again."""
_IDLE_MS: Final = 10_000
"""For how long a worker without work does not ask, unless it is woken."""


def read_combiner(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """A run, as a lock, and how many items wait or are being run."""
    snapshot = read_locks(now_us, found)
    if wrong := wrong_types({"value": "hash"}, found):
        return snapshot.with_problems(wrong)._replace(stands=True)
    if not (value := found["value"]):
        return snapshot
    waiting = whole_number(value.value.get(b"waiting"))
    if waiting is None or b"last" not in value.value:
        return snapshot.with_problems((of_others("value"),))._replace(stands=True)
    return snapshot._replace(value=waiting, stands=snapshot.stands or waiting > 0)


COMBINERS: Final = Family(
    keys="fence queue",
    renew=LOCKS.renew,
    release=LOCKS.release,
    adopt=LOCKS.adopt,
    annotate=LOCKS.annotate,
    owned=LOCKS.owned,
    locked=LOCKS.locked,
    bell_last=True,
    roles="value",
    read=read_combiner,
    passive="fence items answers puts idle",
    force=FORCE_LOCK,
    forced="nest queue fence",
)
KINDS: Final = (
    Kind(
        COMBINERS,
        "combiner",
        "Combiner",
        shows_value=True,
        needs=(
            *("hlen", "hmget", "hset", "zcount", "zrangebyscore", "zremrangebyrank", "zremrangebyscore"),
            "zscore",
        ),
    ),
)


class Row(NamedTuple):
    """Items with numbers that follow each other; the last one is one of them."""

    first: int
    last: int


class Entry(NamedTuple):
    """The answer for some items that follow each other."""

    first: int
    last: int
    tag: str
    payload: bytes


class Put(NamedTuple):
    """What became of items that were left.

    Attributes:
        first: The number of the first of them.
        taken: How many there was room for.
        waiting: How many wait now.
        rung: The bells of the waiters that were woken.
    """

    first: int
    taken: int
    waiting: int
    rung: Sequence[bytes] = ()


class Piece(NamedTuple):
    """Some items of a batch.

    Attributes:
        upto: The number of the last item of the batch.
        at: The number of the last item that was looked at.
        left_out: How many of those are not kept any more.
        items: Number, whether somebody waits for its answer, and payload of each.
    """

    number: int
    attempt: int
    upto: int
    at: int
    left_out: int
    items: Sequence[tuple[int, bool, bytes]]

    @classmethod
    def of(cls, raw: Sequence[Any]) -> Piece | None:
        if not raw:
            return None
        number, attempt, upto, at, left_out, *items = raw
        triples = zip(items[::3], items[1::3], items[2::3], strict=True)
        return cls(
            int(number),
            int(attempt),
            int(upto),
            int(at),
            int(left_out),
            [(int(one), flag == b"w", payload) for one, flag, payload in triples],
        )


class HandedOut(NamedTuple):
    """What a runner is handed out.

    Attributes:
        wait_ms: Milliseconds until the batch begins.
        piece: Some of its items, once it has begun; None if there is none.
    """

    wait_ms: int
    piece: Piece | None


@final
class Told(LockError):  # noqa: N818 - it is no error: how an acquire ends that has become needless
    """Ends the acquire of a session whose items have answers.

    Attributes:
        settled: All items up to this number are done.
        answers: The answers for those among them.
        missing: Items that the server does not know.
    """

    def __init__(self, settled: int, answers: Sequence[Entry], missing: Sequence[Row]) -> None:
        super().__init__("there are answers")
        self.settled = settled
        self.answers = answers
        self.missing = missing


class Ack(NamedTuple):
    """How a run ends.

    Attributes:
        token: Of the run.
        run: Its fencing token.
        upto: The last item of its batch.
        failed: The items stay for another attempt.
    """

    token: str
    run: int
    upto: int
    failed: bool


class Bounds(NamedTuple):
    """The settings of a combiner as the server needs them; times in ms."""

    most: int
    window_ms: int
    within_ms: int
    most_waiting: int
    keep_ms: int


@final
class CombinerSteps(LockSteps):
    """The steps of one combiner in one session.

    Attributes:
        bounds: Its settings, for the requests from now on.
        rows: Tells which items this session waits for; asked for each request.
        handed_out: The beginning of the batch, of the last grant.
    """

    family = COMBINERS
    __slots__ = ("_ack", "_idle", "_run", "_under", "bounds", "handed_out", "rows")

    def __init__(
        self,
        prefix: str,
        name: str,
        *,
        bounds: Bounds,
        rows: Callable[[], Sequence[Row]],
        retention_ms: int,
        session: str,
    ) -> None:
        super().__init__(prefix, name, retention_ms=retention_ms, session=session, kind="combiner")
        self.bounds = bounds
        self.rows = rows
        roles = ("", "value", "items", "answers", "fence", "queue", "puts")
        own, value, items, answers, fence, queue, puts = (key(prefix, "combiner", name, one) for one in roles)
        self._idle = key(prefix, "combiner", name, "idle")
        self._run = (own, value, items, answers)
        self._under = {"puts": puts, "queue": queue, "fence": fence}
        self._ack: Ack | None = None
        self.handed_out = HandedOut(0, None)

    def wanted(self) -> None:
        """It takes no part in the search for deadlocks."""

    def listener(self, token: str) -> Listener:
        return Listener(self.bell, (self._under["queue"],), locks=(self._run[0], self._idle))

    def put(self, token: str, items: Sequence[tuple[bool, bytes]], *, known_ms: int) -> Command[Put]:
        """Leaves items: whether somebody waits for its answer, and payload of each."""
        bounds = self.bounds
        args: list[Argument] = [
            token,
            bounds.most_waiting,
            bounds.keep_ms,
            max(_KNOWN_MS, known_ms),
            self._retention_ms,
        ]
        for waits, payload in items:
            args += ("w" if waits else "l", payload)
        keys = (*self._run, self._under["puts"], self._under["queue"], self._idle)
        return Command(_PUT, keys, tuple(args), _put, lane=f"{self._name}.put")

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Command[Answer]:
        """Takes the run, unless there are answers, or says for how long the present one may go on."""
        keys: tuple[bytes, ...] = (*self._run, self._under["fence"], self._under["queue"], self._idle)
        if standing & (WAITING | SEATED):
            keys = (*keys, self.bell)
        bounds = self.bounds
        args = (
            token,
            ttl_ms,
            self._retention(ttl_ms),
            metadata,
            letters(standing),
            bounds.most,
            bounds.window_ms,
            bounds.within_ms,
            " ".join(f"{row.first}-{row.last}" for row in self.rows()),
            _IDLE_MS,
        )
        return Command(_ACQUIRE, keys, args, self._answer, lane=token)

    def take(self, token: str, after: int) -> Command[HandedOut | None]:
        """More of the batch, after that item; None if the token does not have the run."""
        bounds = self.bounds
        args = (token, self._retention_ms, bounds.most, bounds.window_ms, bounds.within_ms, str(after))
        return Command(_TAKE, self._run, args, _handed_out, lane=token)

    def answer(self, token: str, entries: Sequence[Entry], *, first: bool) -> Command[bool]:
        """Leaves answers; `first` those of the batch."""
        args: list[Argument] = [token, "1" if first else ""]
        for entry in entries:
            args += (str(entry.first), str(entry.last), entry.tag, entry.payload)
        return Command(_ANSWER, self._run, tuple(args), truth, lane=token)

    def leave(self, ack: Ack) -> None:
        """Sets how that run ends: from now on its release says so."""
        self._ack = ack

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Command[Released]:
        """Ends the run as it was said, or with a batch that another one has to run."""
        ack = self._ack
        if ack is None or ack.token != token or leave:
            return super().release(token, ttl_ms, ring=ring, leave=leave)
        keys = (*self._run, self._under["fence"], self._under["queue"])
        args = (
            token,
            str(ack.run),
            self._retention(ttl_ms),
            str(ack.upto),
            "f" if ack.failed else "d",
        )
        return Command(_ACK, keys, args, released, lane=token)

    def _answer(self, raw: Any) -> Answer:
        if raw[0] == 1:
            self.handed_out = HandedOut(int(raw[3]), Piece.of(raw[4]))
            return Granted(int(raw[1]), raw[2])
        if raw[0] == 0:
            return Refused(None if raw[1] < 0 else raw[1], raw[2:])
        _, settled, told, missing, *rung = raw
        answers = zip(told[::4], told[1::4], told[2::4], told[3::4], strict=True)
        entries = [
            Entry(int(first), int(last), tag.decode(), payload) for first, last, tag, payload in answers
        ]
        rows = [Row(int(first), int(last)) for first, last in zip(missing[::2], missing[1::2], strict=True)]
        return Refused(None, rung, error=Told(int(settled), entries, rows))


def _put(raw: Any) -> Put:
    first, taken, waiting, *rung = raw
    return Put(int(first), int(taken), int(waiting), rung)


def _handed_out(raw: Any) -> HandedOut | None:
    if raw[0] == -1:
        return None
    return HandedOut(int(raw[0]), Piece.of(raw[1]))
