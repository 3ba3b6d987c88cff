"""Reads what a server sends: replies, errors and pushes, in every form that the protocol allows.

The parser of hiredis reads nearly all of it, and fast. It takes an attribute (what a server says about the
next reply) for a reply, so that each caller would get the answer to another one's request; and it knows no
long errors, no streams, and no map whose keys are maps or arrays. This module reads in Python what may be one
of these: where a `|` comes in, and where hiredis gives up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final, TypeAlias, final

import hiredis
import redis.exceptions as driver
from redis._parsers.base import BaseParser

from .libraries import REDIS, Library

PushNotification: Final = hiredis.PushNotification

# Before redis-py 6, only the parser of a cluster's client knew them.
_CLUSTER_ANSWERS: Final[dict[str, type[driver.ResponseError]]] = {
    "ASK": driver.AskError,
    "CLUSTERDOWN": driver.ClusterDownError,
    "CROSSSLOT": driver.ClusterCrossSlotError,
    "MASTERDOWN": driver.MasterDownError,
    "MOVED": driver.MovedError,
    "TRYAGAIN": driver.TryAgainError,
}
_NOT_ENOUGH: Final = object()
_DEEPEST: Final = 100
"""Levels of arrays in arrays that are read."""
_KEPT: Final = 16_384
"""Bytes that are kept of each connection, to be read again in Python."""
_LAST: Final = 512
"""Of these, the last ones, in which a reply is likely to end."""
_Read: TypeAlias = tuple[Any, int]
"""What was read, and where the next one begins."""


class UnreadableRedirectError(driver.ResponseError):
    """A node named no slot, host and port of the node that it redirects to."""


def error_of(text: str) -> Exception:
    """The exception for an error reply, of the same class whatever the version of redis-py."""
    code, _, rest = text.partition(" ")
    if code in _CLUSTER_ANSWERS:
        try:
            return _CLUSTER_ANSWERS[code](rest)
        except ValueError:  # as redis-py takes a redirect apart
            return UnreadableRedirectError(f"a redirect that cannot be read: {rest!r}")
    parse: Any = BaseParser.parse_error
    error: Exception = parse(text)
    return error


@final
class Replies:
    """The replies that come on one connection: bytes, numbers, lists, maps; errors as exceptions.

    Errors are exceptions of redis-py and of `library`; a push is a `PushNotification`.

    Invariant: what is kept begins where a reply begins, and the first `_given` replies in it were given
    before. So it can be read again in the other way: hiredis does not say where a reply has ended. It is kept
    in `_kept`, or in `_rest` while it is read in Python.
    """

    __slots__ = ("_error", "_fast", "_given", "_kept", "_most", "_rest", "_size")

    def __init__(self, library: Library = REDIS) -> None:
        self._error: Callable[[str], Exception] = (
            error_of if library is REDIS else lambda text: library.own(error_of(text))
        )
        self._fast = self._parser()
        self._kept: list[bytes] = []
        self._size = 0  # of what is kept
        self._most = _KEPT  # bytes from which on replies that were given are left out
        self._given = 0
        self._rest = b""

    def _parser(self) -> hiredis.Reader:
        return hiredis.Reader(
            protocolError=driver.InvalidResponse, replyError=self._error, notEnoughData=_NOT_ENOUGH
        )

    @property
    def partial(self) -> bool:
        """Whether a part of a text, a number or a line has come, and not all of it."""
        return bool(self._rest) or self._fast.has_data()

    def read(self, data: bytes) -> Iterable[Any]:
        """The replies of which these bytes are the end.

        Raises:
            redis.exceptions.InvalidResponse: The bytes are no reply. What comes later cannot be read.
        """
        found: list[Any] = []
        if not self._rest:
            self._kept.append(data)
            self._size += len(data)
            if b"|" not in data:
                fast = self._fast
                try:
                    fast.feed(data)
                    found.extend(iter(fast.gets, _NOT_ENOUGH))  # in C; what came before an error stays
                except (driver.InvalidResponse, TypeError):
                    self._given += len(found)  # it may be one that this parser does not know
                else:
                    self._given += len(found)
                    if self._size > self._most:
                        self._leave_out_given()
                    return found
            self._fast = self._parser()
            data = b"".join(self._kept)
            self._keep(b"")
        self._rest += data
        return chain(found, self._read_slowly())

    def _leave_out_given(self) -> None:
        """Finds the end of the last reply that was given, mostly a few bytes before the end of all."""
        kept = b"".join(self._kept)
        again = self._parser()
        at = max(0, len(kept) - _LAST)
        again.feed(kept[:at])
        left = self._given - _number_in(again)
        while left and (end := kept.find(b"\r\n", at) + 2) > 1:  # each reply ends with these
            again.feed(kept[at:end])
            left, at = left - _number_in(again), end
        if self._given and not left and at > len(kept) - _LAST:
            self._given = 0
            self._keep(kept[at:])
        else:  # a long reply is on its way: it is read again when twice as much has come
            self._keep(kept)

    def _keep(self, data: bytes) -> None:
        self._kept = [data] if data else []
        self._size = len(data)
        self._most = max(_KEPT, 2 * self._size)  # a long reply is not read again for each of its parts

    def _read_slowly(self) -> Iterator[Any]:
        at = 0
        try:
            while at < len(self._rest):
                reply, at = self._item(at, 0)
                if self._given:
                    self._given -= 1
                else:
                    yield reply
        except _NotEnoughError:
            pass
        except (ValueError, TypeError) as error:
            raise driver.InvalidResponse(f"Protocol error: {error}") from error
        finally:
            self._rest = self._rest[at:]

    def _item(self, at: int, depth: int) -> _Read:
        """The reply that begins there, or the part of one."""
        if depth > _DEEPEST:
            raise ValueError("arrays in too many arrays")
        sort, head, at = self._line(at)
        match sort:
            case b"$" | b"=" | b"!":
                return self._text(sort, head, at)
            case b"|":
                _, at = self._items(2 * int(head), at, depth)
                return self._item(at, depth)
            case b"*" | b"~" | b">" | b"%":
                return self._several(sort, head, at, depth)
            case _:
                return self._simple(sort, head), at

    def _simple(self, sort: bytes, head: bytes) -> Any:
        match sort:
            case b"+" | b"(":
                return head
            case b":":
                return int(head)
            case b"-":
                return self._error(head.decode(errors="replace"))
            case b",":
                return float(head)
            case b"#":
                return head == b"t"
            case b"_":
                return None
            case _:
                raise ValueError(f"a reply of a sort {sort!r}")

    def _line(self, at: int) -> tuple[bytes, bytes, int]:
        end = self._rest.find(b"\r\n", at)
        if end < 0:
            raise _NotEnoughError
        return self._rest[at : at + 1], self._rest[at + 1 : end], end + 2

    def _text(self, sort: bytes, head: bytes, at: int) -> _Read:
        if head == b"?":
            pieces: list[bytes] = []
            while not pieces or pieces[-1]:
                _, length, at = self._line(at)
                piece, at = self._piece(int(length), at) if int(length) else (b"", at)
                pieces.append(piece)
            return b"".join(pieces), at
        if int(head) < 0:
            return None, at
        text, at = self._piece(int(head), at)
        if sort == b"!":
            return self._error(text.decode(errors="replace")), at
        return text[4:] if sort == b"=" else text, at  # behind the format of the text

    def _piece(self, length: int, at: int) -> tuple[bytes, int]:
        if len(self._rest) < at + length + 2:
            raise _NotEnoughError
        return self._rest[at : at + length], at + length + 2

    def _several(self, sort: bytes, head: bytes, at: int, depth: int) -> _Read:
        number = None if head == b"?" else int(head) * (2 if sort == b"%" else 1)
        if number is not None and number < 0:
            return None, at
        items, at = self._items(number, at, depth)
        if sort == b">":
            return PushNotification(items), at
        if sort == b"%":
            pairs = list(zip(items[::2], items[1::2], strict=True))
            try:
                return dict(pairs), at
            except TypeError:  # a map or an array as a key
                return pairs, at
        return items, at

    def _items(self, number: int | None, at: int, depth: int) -> tuple[list[Any], int]:
        """So many items, or all items up to the end of the stream."""
        items: list[Any] = []
        while len(items) != number:
            if number is None and self._rest.startswith(b".\r\n", at):
                return items, at + 3
            item, at = self._item(at, depth + 1)
            items.append(item)
        return items, at


def _number_in(reader: hiredis.Reader) -> int:
    return len(list(iter(reader.gets, _NOT_ENOUGH)))


class _NotEnoughError(Exception):
    """A part of the reply is still to come."""
