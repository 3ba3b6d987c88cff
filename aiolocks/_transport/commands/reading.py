"""The state of a name on the server, as far as it can be read.

Nothing here trusts what it reads: somebody else may have written it, half of it may have been evicted, and
between two keys of a scan anything may have happened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self, final

from .caps import caps_of

# A token of ours is hexadecimal; a fencing token has no more digits than 2^53.
# A leading zero is that of a Redlock's token which was written back.
_TOKEN: Final = re.compile(rb"(?:[0-9a-f]{32}){1,2}")
_ID: Final = re.compile(rb"(?:[0-9a-f]{32}){1,2}|.*\.bell\..*|held", re.DOTALL)
"""Of a holder or of a waiter; and the name of a sum."""
_TICKET: Final = re.compile(rb"[\w-]{22}\.\d+")
_LOCK: Final = re.compile(rb"((?:[0-9a-f]{32}){1,2}):(0?\d{1,16}):(.*)", re.DOTALL)
_FENCE: Final = re.compile(rb"\d{1,16}")
_LEASE: Final = re.compile(rb"(\d{1,16}):(\d{1,16}):(.*)", re.DOTALL)
_LIMITED: Final = re.compile(rb"((?:[^:,=]+=\d{1,10},?)+):(\d{1,16}):(.*)", re.DOTALL)
_TURN: Final = re.compile(rb"#\d{16}|!\S+ \S+ \d{16}|\S+ \d{16} \S+")
_SPAN: Final = re.compile(rb"([ruw]) (\S+) (\S+) (\d{1,16}) (.*)", re.DOTALL)
_WAITING: Final = re.compile(rb"w (\S+) (\S+) p (\S+)")
"""Of a writer that has reserved."""
_OF_NOBODY: Final = re.compile(r"0{32}[0-9a-f]+")
"""The token under which the scripts keep a name that nobody holds: zeros, then the last holder's token."""
_LAST_FENCE: Final = 2**53 - 1
_MODES: Final = {b"r": "reader", b"u": "upgradable", b"w": "writer"}
_NOTHING: Final = "none"
_NO_TTL: Final = -1


@final
class Content(NamedTuple):
    """The content of one key.

    Attributes:
        type: As the server calls it; `none` where there is nothing.
        ttl_ms: Milliseconds that it has left; negative where it has no end.
        value: Of a string, itself; of a hash, its fields; of a sorted set, its members by their scores.
    """

    type: str
    ttl_ms: int
    value: Any

    @classmethod
    def of(cls, type: bytes, ttl_ms: int, content: Any) -> Self:  # noqa: A002 - the server's word
        if isinstance(content, list):
            content = dict(zip(content[::2], content[1::2], strict=True))
        return cls(type.decode(), ttl_ms, content)

    def __bool__(self) -> bool:
        return self.type != _NOTHING


_NO_CONTENT: Final = Content(_NOTHING, -2, b"")


@final
class Holder(NamedTuple):
    """A holder; a field that is not known, or is not of this kind, is None.

    Attributes:
        tokens: The secrets of its possession; the first is the one by which the lease is known.
        left_ms: Milliseconds that its lease has left.
        permits: The number of permits that it holds.
        depth: The number of its leases, one in the other.
        mode: `reader`, `upgradable` or `writer`; `ticket` of one that owns the key of a job.
        span: The closed interval that it holds.
        keys: Of limits, the keys of which it holds a permit, each with its cap.
    """

    tokens: tuple[str, ...]
    fencing_token: int | None
    left_ms: int | None
    metadata: bytes = b""
    permits: int | None = None
    depth: int | None = None
    mode: str | None = None
    span: tuple[float, float] | None = None
    keys: tuple[tuple[str, int], ...] | None = None


@final
class Reservation(NamedTuple):
    """A writer that waits, and keeps out what comes after it.

    Attributes:
        bell: Of its session.
        until_ms: When it counts no more, unless its session says again that it waits.
        span: The closed interval that it wants.
        under: The token of the upgradable that will be upgraded; or empty.
    """

    bell: bytes
    until_ms: int
    span: tuple[float, float]
    under: str


@final
class Waiter(NamedTuple):
    """One place in a queue.

    Attributes:
        since_us: The server's time when it was taken; None where that cannot be read.
        card: Host and process of the session, JSON; empty where it has written none.
    """

    since_us: int | None
    card: bytes


@final
class Finding(NamedTuple):
    """The state of one name on the server.

    Attributes:
        now_us: The server's time, microseconds.
        value: Of a semaphore, how many permits there are; of a turnstile, how many have gone through.
        stands: There is something, with any holder or none.
        problems: The faults that were found, each in words.
        waiters: How many wait and live.
        first_waiters: The first of them, as many as were asked for.
        ticket: Of a job, the ticket that owns its key, as it stands there.
        kept: The last holder of a name that is kept for its `at_least`: nobody holds it, and nobody gets it.
        reservations: Of writers that wait.
    """

    now_us: int
    holders: tuple[Holder, ...] = ()
    value: int | None = None
    stands: bool = False
    problems: tuple[str, ...] = ()
    waiters: int = 0
    first_waiters: tuple[Waiter, ...] = ()
    ticket: bytes = b""
    kept: Holder | None = None
    reservations: tuple[Reservation, ...] = ()

    @property
    def grants(self) -> tuple[Holder, ...]:
        """The holders, and the one that was."""
        return self.holders if self.kept is None else (*self.holders, self.kept)

    def with_problems(self, problems: tuple[str, ...]) -> Finding:
        """The same, with what else is not as it should be."""
        return self._replace(problems=(*self.problems, *problems))

    def with_waiters(self, number: int, told: Sequence[bytes]) -> Finding:
        """The same with its waiters; `told` holds for each of the first since when, and its card."""
        if number < 0:
            return self._replace(problems=(*self.problems, "its queue is something else"))
        if number == 0:
            return self
        first = (Waiter(_number(since), card) for since, card in zip(told[::2], told[1::2], strict=True))
        return self._replace(waiters=number, first_waiters=tuple(first))


def read_locks(now_us: int, found: Mapping[str, Content]) -> Finding:
    """A lock, which its owner may have taken more than once."""
    lock, nest = found[""], found.get("nest", _NO_CONTENT)
    if wrong := _wrong({"": "string", "nest": "zset"}, found) + _not_ours(found, ("nest",)):
        return Finding(now_us, stands=bool(lock), problems=wrong)
    if not lock:
        return Finding(now_us)
    match = _LOCK.fullmatch(lock.value)
    if match is None:
        return Finding(now_us, stands=True, problems=(_of_others(""), *_endless(lock)))
    token = match[1].decode()
    nested = _nested(token, nest, now_us)
    holder = Holder(
        (token, *nested),
        int(match[2]),
        None if lock.ttl_ms == _NO_TTL else lock.ttl_ms,
        match[3],
        depth=len(nested) or None,
    )
    if of_nobody(holder):
        return Finding(now_us, stands=True, problems=_endless(lock), kept=holder)
    return Finding(now_us, (holder,), stands=True, problems=_endless(lock))


def of_nobody(holder: Holder) -> bool:
    """Whether the name is only kept: its last holder has released it before its `at_least` had passed."""
    return _OF_NOBODY.fullmatch(holder.tokens[0]) is not None


def told_lock(left_ms: int, held: bytes) -> Holder | None:
    """A holder as a refusal tells of it; None for what is not ours."""
    match = _LOCK.fullmatch(held)
    if match is None:
        return None
    return Holder((match[1].decode(),), int(match[2]), None if left_ms < 0 else left_ms, match[3])


def told_permits(token: bytes, left_ms: int, lease: bytes) -> Holder | None:
    """The same of a holder of permits."""
    match = _LEASE.fullmatch(lease)
    if match is None:
        return None
    holder = Holder((token.decode(errors="replace"),), int(match[2]), left_ms, match[3])
    return holder._replace(permits=int(match[1]))


def told_limits(token: bytes, left_ms: int, lease: bytes) -> Holder | None:
    """The same of a holder of a permit of each of several keys."""
    match = _LIMITED.fullmatch(lease)
    if match is None:
        return None
    keys = tuple(caps_of(match[1].decode(errors="replace")).items())
    return Holder((token.decode(errors="replace"),), int(match[2]), left_ms, match[3], keys=keys)


def told_span(token: bytes, left_ms: int, lease: bytes) -> Holder | None:
    """The same of a holder of a span."""
    match = _SPAN.fullmatch(lease)
    a, b = (_bound(match[2]), _bound(match[3])) if match is not None else (None, None)
    if match is None or a is None or b is None:
        return None
    holder = Holder((token.decode(errors="replace"),), int(match[4]), left_ms, match[5])
    return holder._replace(mode=_MODES[match[1]], span=(a, b))


def _nested(owner: str, nest: Content, now_us: int) -> list[str]:
    """The tokens of that owner; what another one has left behind is nobody's."""
    if not nest:
        return []
    tokens = (token.decode(errors="replace") for token in _after(nest, now_us))
    return sorted(token for token in tokens if token.startswith(owner))


def read_permits(
    now_us: int,
    found: Mapping[str, Content],
    numbers: tuple[bytes, ...] = (b"first", b"current"),
    *,
    told: Callable[[bytes, int, bytes], Holder | None] = told_permits,
) -> Finding:
    """A kind with several permits. Where there is a value, it has these `numbers`; `told` reads a lease."""
    if wrong := _wrong({"": "zset", "leases": "hash", "value": "hash"}, found):
        return Finding(now_us, stands=True, problems=wrong)
    leases: dict[bytes, bytes] = found["leases"].value if found["leases"] else {}
    deadlines = found[""].value if found[""] else {}
    holders: list[Holder] = []
    problems = list(_not_ours(found, ("", "leases")))
    kept: Holder | None = None
    for token, left_ms in _after(found[""], now_us).items():
        if _ID.fullmatch(token) is None:
            continue
        holder = told(token, left_ms, leases.get(token, b""))
        if holder is None:
            problems.append("half of a lease is missing")
        elif of_nobody(holder):
            kept = holder
        else:
            holders.append(holder)
    if any(map(_TOKEN.fullmatch, leases.keys() - deadlines.keys())):
        problems.append("half of a lease is missing")
    problems += [problem for key in ("", "leases") for problem in _endless(found[key])]
    values: dict[bytes, bytes] = found["value"].value if found["value"] else {}
    value = _number(values.get(b"current"))
    if values and None in map(_number, map(values.get, numbers)):
        problems.append(_of_others("value"))
    return Finding(
        now_us,
        tuple(holders),
        value,
        stands=bool(holders or problems or kept),
        problems=tuple(dict.fromkeys(problems)),
        kept=kept,
    )


def read_job(now_us: int, found: Mapping[str, Content]) -> Finding:
    """The runs of a job, beside others or not, and the ticket that owns its key, queued or running."""
    finding, owner, about = _read_runs(now_us, found), found["owner"], found["about"]
    wrong = _wrong({"owner": "string", "about": "hash"}, found)
    if owner.type == "string" and _TICKET.fullmatch(owner.value) is None:
        wrong = (*wrong, _of_others("owner"))
    if about.type == "hash" and not all(map(_TICKET.fullmatch, about.value)):
        wrong = (*wrong, _of_others("about"))
    if wrong or owner:
        problems = (*finding.problems, *wrong, *_endless(owner))
        finding = finding._replace(stands=True, problems=problems)
    if owner.type != "string":
        return finding
    ticket: bytes = owner.value
    holder = Holder(
        (ticket.decode(errors="replace"),),
        None,
        None if owner.ttl_ms == _NO_TTL else owner.ttl_ms,
        about.value.get(ticket, b"") if about.type == "hash" else b"",
        mode="ticket",
    )
    return finding._replace(holders=(*finding.holders, holder), ticket=ticket)


def read_schedule(now_us: int, found: Mapping[str, Content]) -> Finding:
    """The runs of a schedule, which are kept as permits are."""
    return read_permits(now_us, {**found, "value": _NO_CONTENT})


def read_limits(now_us: int, found: Mapping[str, Content]) -> Finding:
    """Leases of limits. A waiter that was called holds nothing yet."""
    leases = found["leases"]
    if isinstance(leases.value, dict):
        counted = {one: lease for one, lease in leases.value.items() if not one.startswith(b"#")}
        leases = leases._replace(value=counted)
    finding = read_permits(
        now_us, {"": found[""], "leases": leases, "value": _NO_CONTENT}, told=told_limits
    )._replace(kept=None)
    turns, wrong = found["turns"], _wrong({"turns": "zset"}, found)
    if turns.type == "zset" and not all(map(_TURN.fullmatch, turns.value)):
        wrong = (_of_others("turns"),)
    problems = (*finding.problems, *wrong)
    return finding._replace(stands=bool(finding.holders or problems), problems=problems)


def _read_runs(now_us: int, found: Mapping[str, Content]) -> Finding:
    """Those that count for the limit, and those beside them, which are kept in the same way."""
    finding = read_permits(now_us, found, (b"current",))
    others = {"": found["beside"], "leases": found["beside.leases"], "value": _NO_CONTENT}
    beside = read_permits(now_us, others)
    return finding._replace(
        holders=(*finding.holders, *beside.holders),
        stands=finding.stands or beside.stands,
        problems=tuple(dict.fromkeys((*finding.problems, *beside.problems))),
    )


def read_spans(now_us: int, found: Mapping[str, Content]) -> Finding:
    """Spans, in three modes."""
    sides = tuple(found.keys() - {"", "ends", "waits", "fence"})
    if wrong := _wrong({"": "hash", "ends": "zset", "waits": "zset"}, found):
        return Finding(now_us, stands=True, problems=wrong)
    spans: dict[bytes, bytes] = found[""].value if found[""] else {}
    ends, waits = (found[key].value if found[key] else {} for key in ("ends", "waits"))
    holders: list[Holder] = []
    problems = list(
        _wrong(dict.fromkeys(sides, "zset"), found) + _not_ours(found, ("", "ends", "waits", *sides))
    )
    for token, left_ms in _after(found["ends"], now_us).items():
        if _ID.fullmatch(token) is None:
            continue
        holder = told_span(token, left_ms, spans.get(token, b""))
        if holder is None:
            problems.append("half of a lease is missing")
        else:
            holders.append(holder)
    if any(map(_ID.fullmatch, spans.keys() - ends.keys() - waits.keys())):
        problems.append("half of a lease is missing")
    problems += [problem for key in ("", "ends") for problem in _endless(found[key])]
    return Finding(
        now_us,
        tuple(holders),
        stands=bool(holders or problems),
        problems=tuple(dict.fromkeys(problems)),
        reservations=tuple(_reserved(spans, waits, now_us // 1000)),
    )


def _reserved(
    spans: Mapping[bytes, bytes], waits: Mapping[bytes, bytes], now_ms: int
) -> Iterator[Reservation]:
    for bell, until in waits.items():
        match, until_ms = _WAITING.fullmatch(spans.get(bell, b"")), _number(until)
        a, b = (_bound(match[1]), _bound(match[2])) if match is not None else (None, None)
        if match and a is not None and b is not None and until_ms is not None and until_ms > now_ms:
            yield Reservation(bell, until_ms, (a, b), match[3].decode(errors="replace").removesuffix("-"))


def read_beside(found: Mapping[str, Content]) -> tuple[str, ...]:
    """The faults of the keys that stand beside the holders, for a while after them too."""
    types = dict.fromkeys(found, "zset") | {"fence": "string", "seen": "hash"}
    types |= dict.fromkeys(("value", "beside.value", "register", "stolen"), "hash")
    wrong = _wrong(types, found)
    fence = found.get("fence", _NO_CONTENT)
    if fence.type == "string" and (_FENCE.fullmatch(fence.value) is None or int(fence.value) >= _LAST_FENCE):
        wrong = (*wrong, _of_others("fence"))
    return wrong


def read_turnstile(now_us: int, found: Mapping[str, Content]) -> Finding:
    """A window that is open: its first entrant, and how many have gone through."""
    if wrong := _wrong({"": "zset"}, found):
        return Finding(now_us, stands=True, problems=wrong)
    if not (places := found[""]):
        return Finding(now_us)
    numbers = {token: _number(place) for token, place in places.value.items()}
    winner = next((token for token, place in numbers.items() if place == 1), None)
    if winner is None or None in numbers.values():
        return Finding(now_us, stands=True, problems=(_of_others(""), *_endless(places)))
    left_ms = None if places.ttl_ms == _NO_TTL else places.ttl_ms
    holder = Holder((winner.decode(errors="replace"),), None, left_ms)
    value = max(filter(None, numbers.values()))
    return Finding(now_us, (holder,), value, stands=True, problems=_endless(places))


def read_register(now_us: int, found: Mapping[str, Content]) -> Finding:
    """A register, which stays for ever and is held by nobody. Its content is the user's."""
    return Finding(now_us, stands=bool(found[""]), problems=_wrong({"": "hash"}, found))


# -- what they have in common


def _wrong(types: Mapping[str, str], found: Mapping[str, Content]) -> tuple[str, ...]:
    """The keys that are there and of another type than ours."""
    return tuple(
        f"{f'its {role}' if role else 'it'} is a {found[role].type}, not a {type_}"
        for role, type_ in types.items()
        if role in found and found[role].type not in (type_, _NOTHING)
    )


def _of_others(role: str) -> str:
    return f"what stands {f'in its {role}' if role else 'there'} was not written by aiolocks"


def _not_ours(found: Mapping[str, Content], roles: Iterable[str]) -> tuple[str, ...]:
    """Sets and hashes with members that are neither tokens nor bells."""
    return tuple(
        _of_others(role)
        for role in roles
        if role in found and isinstance(found[role].value, dict)
        if any(_ID.fullmatch(one) is None for one in found[role].value)
    )


def _endless(content: Content) -> tuple[str, ...]:
    """Everything that somebody holds has a ttl."""
    return ("it has no ttl: nothing frees it",) if content.ttl_ms == _NO_TTL else ()


def _after(deadlines: Content, now_us: int) -> dict[bytes, int]:
    """Those of a set of deadlines that have not passed, with the milliseconds that they have left."""
    if not deadlines:
        return {}
    now_ms = now_us // 1000
    left = {one: _number(deadline) for one, deadline in deadlines.value.items()}
    return {one: ms - now_ms for one, ms in left.items() if ms is not None and ms > now_ms}


def _number(text: bytes | None) -> int | None:
    """A whole number, as the server prints it: perhaps with an exponent, or infinite."""
    try:
        return int(float(text or b""))
    except (ValueError, OverflowError):
        return None


def _bound(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
