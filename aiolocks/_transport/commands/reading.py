"""What stands on the server under a name, as far as it can be read.

Nothing here trusts what it reads: somebody else may have written it, half of it may have been evicted, and
between two keys of a scan anything may have happened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self, final

# A token of ours is hexadecimal; a fencing token has no more digits than 2^53.
# A leading zero is that of a Redlock's token which was written back.
_LOCK: Final = re.compile(rb"([0-9a-f]+):(0?\d{1,16}):(.*)", re.DOTALL)
_LEASE: Final = re.compile(rb"(\d{1,16}):(\d{1,16}):(.*)", re.DOTALL)
_SPAN: Final = re.compile(rb"([ruw]) (\S+) (\S+) (\d{1,16}) (.*)", re.DOTALL)
_MODES: Final = {b"r": "reader", b"u": "upgradable", b"w": "writer"}
_NOTHING: Final = "none"
_NO_TTL: Final = -1
_FOREIGN: Final = "what stands there was not written by aiolocks"


@final
class Content(NamedTuple):
    """What one key holds.

    Attributes:
        type: As the server calls it; `none` where there is nothing.
        ttl_ms: What is left; negative where it has none.
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
    """One who holds; what is not known, or is not of this kind, is None.

    Attributes:
        tokens: The secrets of his possession; the first is what the lease is known by.
        left_ms: What his lease has left.
        permits: How many he holds.
        depth: How many leases he has, one in the other.
        mode: `reader`, `upgradable` or `writer`; `ticket` of one that owns the key of a job.
        span: The closed interval that he holds.
    """

    tokens: tuple[str, ...]
    fencing_token: int | None
    left_ms: int | None
    metadata: bytes = b""
    permits: int | None = None
    depth: int | None = None
    mode: str | None = None
    span: tuple[float, float] | None = None


@final
class Finding(NamedTuple):
    """What stands under a name.

    Attributes:
        now_us: The server's time, microseconds.
        value: Of a semaphore, how many permits there are; of a turnstile, how many have gone through.
        stands: There is something, whoever holds it.
        problems: What is not as it should be, each in words.
        ticket: Of a job, the ticket that owns its key, as it stands there.
    """

    now_us: int
    holders: tuple[Holder, ...] = ()
    value: int | None = None
    stands: bool = False
    problems: tuple[str, ...] = ()
    waiters: int = 0
    ticket: bytes = b""

    def with_waiters(self, waiting: int) -> Finding:
        """The same, with what was found in the queue."""
        if waiting < 0:
            return self._replace(problems=(*self.problems, "its queue is something else"))
        return self._replace(waiters=waiting)


def read_locks(now_us: int, found: Mapping[str, Content]) -> Finding:
    """A lock, which its owner may have taken more than once."""
    lock, nest = found[""], found.get("nest", _NO_CONTENT)
    if not lock:
        return Finding(now_us)
    if wrong := _wrong({"": "string", "nest": "zset"}, found):
        return Finding(now_us, stands=True, problems=wrong)
    match = _LOCK.fullmatch(lock.value)
    if match is None:
        return Finding(now_us, stands=True, problems=(_FOREIGN, *_endless(lock)))
    token = match[1].decode()
    nested = _nested(token, nest, now_us)
    holder = Holder(
        (token, *nested),
        int(match[2]),
        None if lock.ttl_ms == _NO_TTL else lock.ttl_ms,
        match[3],
        depth=len(nested) or None,
    )
    return Finding(now_us, (holder,), stands=True, problems=_endless(lock))


def _nested(owner: str, nest: Content, now_us: int) -> list[str]:
    """The tokens of that owner; what another one has left behind is nobody's."""
    if not nest:
        return []
    tokens = (token.decode(errors="replace") for token in _after(nest, now_us))
    return sorted(token for token in tokens if token.startswith(owner))


def read_permits(now_us: int, found: Mapping[str, Content]) -> Finding:
    """So many permits."""
    if wrong := _wrong({"": "zset", "leases": "hash", "value": "hash"}, found):
        return Finding(now_us, stands=True, problems=wrong)
    leases: dict[bytes, bytes] = found["leases"].value if found["leases"] else {}
    deadlines = found[""].value if found[""] else {}
    holders: list[Holder] = []
    problems: list[str] = []
    for token, left_ms in _after(found[""], now_us).items():
        match = _LEASE.fullmatch(leases.get(token, b""))
        if match is None:
            problems.append("half of a lease is missing")
            continue
        holder = Holder((token.decode(errors="replace"),), int(match[2]), left_ms, match[3])
        holders.append(holder._replace(permits=int(match[1])))
    if leases.keys() - deadlines.keys() - {b"held"}:
        problems.append("half of a lease is missing")
    problems += [problem for key in ("", "leases") for problem in _endless(found[key])]
    value = _number(found["value"].value.get(b"current")) if found["value"] else None
    return Finding(
        now_us,
        tuple(holders),
        value,
        stands=bool(holders or problems),
        problems=tuple(dict.fromkeys(problems)),
    )


def read_job(now_us: int, found: Mapping[str, Content]) -> Finding:
    """Who runs a job, and the ticket that owns its key, be it in a queue or running."""
    finding, owner = read_permits(now_us, found), found["owner"]
    if not owner:
        return finding
    problems = (*finding.problems, *_wrong({"owner": "string"}, found), *_endless(owner))
    if owner.type != "string":
        return finding._replace(stands=True, problems=problems)
    ticket: bytes = owner.value
    holder = Holder(
        (ticket.decode(errors="replace"),),
        None,
        None if owner.ttl_ms == _NO_TTL else owner.ttl_ms,
        mode="ticket",
    )
    holders = (*finding.holders, holder)
    return finding._replace(holders=holders, stands=True, problems=problems, ticket=ticket)


def read_spans(now_us: int, found: Mapping[str, Content]) -> Finding:
    """Spans, in three modes."""
    if wrong := _wrong({"": "hash", "ends": "zset", "waits": "zset"}, found):
        return Finding(now_us, stands=True, problems=wrong)
    spans: dict[bytes, bytes] = found[""].value if found[""] else {}
    ends, waits = (found[key].value if found[key] else {} for key in ("ends", "waits"))
    holders: list[Holder] = []
    problems: list[str] = []
    for token, left_ms in _after(found["ends"], now_us).items():
        match = _SPAN.fullmatch(spans.get(token, b""))
        a, b = (_bound(match[2]), _bound(match[3])) if match is not None else (None, None)
        if match is None or a is None or b is None:
            problems.append("half of a lease is missing")
            continue
        holder = Holder((token.decode(errors="replace"),), int(match[4]), left_ms, match[5])
        holders.append(holder._replace(mode=_MODES[match[1]], span=(a, b)))
    if spans.keys() - ends.keys() - waits.keys():
        problems.append("half of a lease is missing")
    problems += [problem for key in ("", "ends") for problem in _endless(found[key])]
    return Finding(
        now_us,
        tuple(holders),
        stands=bool(holders or problems),
        problems=tuple(dict.fromkeys(problems)),
    )


def read_turnstile(now_us: int, found: Mapping[str, Content]) -> Finding:
    """A window that is open: who began it, and how many have gone through."""
    if wrong := _wrong({"": "zset"}, found):
        return Finding(now_us, stands=True, problems=wrong)
    if not (places := found[""]):
        return Finding(now_us)
    numbers = {token: _number(place) for token, place in places.value.items()}
    winner = next((token for token, place in numbers.items() if place == 1), None)
    if winner is None or None in numbers.values():
        return Finding(now_us, stands=True, problems=(_FOREIGN, *_endless(places)))
    left_ms = None if places.ttl_ms == _NO_TTL else places.ttl_ms
    holder = Holder((winner.decode(errors="replace"),), None, left_ms)
    value = max(filter(None, numbers.values()))
    return Finding(now_us, (holder,), value, stands=True, problems=_endless(places))


def read_register(now_us: int, found: Mapping[str, Content]) -> Finding:
    """A register, which stays for ever and is held by nobody. What is in it is the user's."""
    return Finding(now_us, stands=bool(found[""]), problems=_wrong({"": "hash"}, found))


# -- what they have in common


def _wrong(types: Mapping[str, str], found: Mapping[str, Content]) -> tuple[str, ...]:
    """What is there and of another type than ours."""
    return tuple(
        f"{f'its {role}' if role else 'it'} is a {found[role].type}, not a {type_}"
        for role, type_ in types.items()
        if role in found and found[role].type not in (type_, _NOTHING)
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
