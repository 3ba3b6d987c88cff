"""Replies as a server gives them, and how they travel: RESP2, RESP3, and the values of a script."""

from __future__ import annotations

from typing import Any


class Refusal(Exception):  # noqa: N818 - it is a reply
    """The server answers with an error; the text begins with its code."""


class Status(bytes):
    """A simple string, as OK."""


class Double(float):
    """A number that RESP3 has a type for; RESP2 sends it as text."""


class Pairs(list):
    """Pairs: a map in RESP3, a flat array in RESP2."""


class Scored(list):
    """Members with their scores: an array of pairs in RESP3, a flat array in RESP2."""


class Push(list):
    """Something that the server says by itself; an array in RESP2."""


class Verbatim(bytes):
    """A text that RESP3 names the format of."""


OK = Status(b"OK")
QUEUED = Status(b"QUEUED")
PONG = Status(b"PONG")


def wrong_type() -> Refusal:
    return Refusal("WRONGTYPE Operation against a key holding the wrong kind of value")


def number(value: float) -> bytes:
    """A score as text."""
    if value == int(value) if abs(value) < 1e17 else False:
        return b"%d" % int(value)
    if value in (float("inf"), float("-inf")):
        return b"inf" if value > 0 else b"-inf"
    return repr(float(value)).encode()


def encode(reply: Any, protocol: int, out: list[bytes]) -> None:
    """Appends the bytes of a reply."""
    kind = type(reply)
    if kind is int:
        out.append(b":%d\r\n" % reply)
    elif kind is bytes:
        out.append(b"$%d\r\n%b\r\n" % (len(reply), reply))
    elif reply is None:
        out.append(b"_\r\n" if protocol == 3 else b"$-1\r\n")
    elif kind is Status:
        out.append(b"+%b\r\n" % reply)
    elif kind is list:
        out.append(b"*%d\r\n" % len(reply))
        for item in reply:
            encode(item, protocol, out)
    elif isinstance(reply, Refusal):
        out.append(
            b"-%b\r\n" % str(reply).replace("\r", " ").replace("\n", " ").encode(errors="surrogateescape")
        )
    elif kind is Double:
        text = number(reply)
        out.append(b",%b\r\n" % text if protocol == 3 else b"$%d\r\n%b\r\n" % (len(text), text))
    elif kind is Push:
        out.append(b"%b%d\r\n" % (b">" if protocol == 3 else b"*", len(reply)))
        for item in reply:
            encode(item, protocol, out)
    elif kind is Verbatim:
        form = b"=%d\r\ntxt:%b\r\n" % (len(reply) + 4, reply)
        out.append(form if protocol == 3 else b"$%d\r\n%b\r\n" % (len(reply), reply))
    elif kind is Pairs:
        out.append(b"%%%d\r\n" % len(reply) if protocol == 3 else b"*%d\r\n" % (2 * len(reply)))
        for pair in reply:
            for item in pair:
                encode(item, protocol, out)
    else:
        assert kind is Scored, reply
        out.append(b"*%d\r\n" % (len(reply) if protocol == 3 else 2 * len(reply)))
        for member, score in reply:
            if protocol == 3:
                out.append(b"*2\r\n")
            encode(member, protocol, out)
            encode(Double(score), protocol, out)


def flat(reply: Any) -> Any:
    """The reply as a script sees it, which speaks RESP2."""
    kind = type(reply)
    if kind is Double:
        return number(reply)
    if kind is Verbatim:
        return bytes(reply)
    if kind is Pairs:
        return [flat(item) for pair in reply for item in pair]
    if kind is Scored:
        return [item for member, score in reply for item in (member, number(score))]
    if kind is list:
        return [item if type(item) is bytes else flat(item) for item in reply]
    return reply
