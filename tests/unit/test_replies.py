"""Whatever a server may send by the protocol is read, wherever it is cut."""

from __future__ import annotations

import itertools
import random
from typing import Any

import hiredis
import pytest
import redis.exceptions as driver

from aiolocks.transport import replies as module
from aiolocks.transport.replies import PushNotification, Replies, error_of
from tests.support.each import each

ATTRIBUTE = b"|1\r\n$3\r\nttl\r\n*2\r\n:3600\r\n%1\r\n+a\r\n|1\r\n+b\r\n:1\r\n:2\r\n"


def read(data: bytes, *, piece: int = 1_000_000) -> list[Any]:
    replies = Replies()
    return [reply for at in range(0, len(data), piece) for reply in replies.read(data[at : at + piece])]


KNOWN: dict[bytes, Any] = {
    b"+OK\r\n": b"OK",
    b":-12\r\n": -12,
    b"$-1\r\n": None,
    b"$4\r\na|\r\n\r\n": b"a|\r\n",
    b"*-1\r\n": None,
    b"*2\r\n$1\r\n|\r\n:1\r\n": [b"|", 1],
    b"_\r\n": None,
    b"#t\r\n": True,
    b"#f\r\n": False,
    b",1.5\r\n": 1.5,
    b",-inf\r\n": float("-inf"),
    b"(3492890328409238509324850943850943825024385\r\n": b"3492890328409238509324850943850943825024385",
    b"=8\r\ntxt:a|b!\r\n": b"a|b!",
    b"~2\r\n:1\r\n*1\r\n:2\r\n": [1, [2]],
    b"%1\r\n+key\r\n_\r\n": {b"key": None},
    b"%1\r\n*1\r\n:1\r\n:2\r\n": [([1], 2)],
    b"%1\r\n%0\r\n:2\r\n": [({}, 2)],
    b">2\r\n+invalidate\r\n*1\r\n+a\r\n": [b"invalidate", [b"a"]],
    b">0\r\n": [],
    b"$?\r\n;4\r\nHell\r\n;1\r\no\r\n;0\r\n": b"Hello",
    b"*?\r\n:1\r\n*?\r\n.\r\n.\r\n": [1, []],
    b"%?\r\n+a\r\n:1\r\n.\r\n": {b"a": 1},
}


@each("data, before, piece", itertools.product(KNOWN, [b"", ATTRIBUTE, 2 * ATTRIBUTE], [1, 2, 5, 1_000]))
def test_each_sort_of_reply_wherever_it_is_cut(data: bytes, before: bytes, piece: int) -> None:
    expected = [b"first", KNOWN[data], b"last", KNOWN[data]]
    assert read(b"+first\r\n" + before + data + b"+last\r\n" + before + data, piece=piece) == expected


@pytest.mark.parametrize("piece", [1, 3, 1_000])
@pytest.mark.parametrize("data", [b"-ERR one\r\n", b"!7\r\nERR one\r\n", ATTRIBUTE + b"!7\r\nERR one\r\n"])
def test_errors(data: bytes, piece: int) -> None:
    error, after = read(data + b":1\r\n", piece=piece)
    assert (type(error), str(error), after) == (driver.ResponseError, "one", 1)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400\r\n",
        b"$x\r\n",
        b"*2\r\n?\r\n",
        b":1x\r\n|1\r\n",
        b"|x\r\n",
        b"*1\r\n" * 1000 + b"|1\r\n",
    ],
)
def test_what_is_no_reply(data: bytes) -> None:
    with pytest.raises(driver.InvalidResponse):
        read(data)


class _Sender:
    """Makes replies of all sorts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def reply(self, depth: int = 0) -> bytes:
        sort = self.random.choice("+-:$,_#(=" + ("*%~>" if depth < 3 else ""))
        number = self.random.randint(0, 3)
        if sort in "*~>":
            several = b"".join(self.reply(depth + 1) for _ in range(number))
            return b"%b%d\r\n" % (b"*" if sort == ">" and depth else sort.encode(), number) + several
        if sort == "%":
            return b"%%%d\r\n" % number + b"".join(b"+%d\r\n" % key + self.reply(3) for key in range(number))
        made = {
            "+": b"+%d\r\n" % number,
            "-": b"-ERR %d\r\n" % number,
            ":": b":%d\r\n" % (number - 1),
            "$": self.random.choice([b"$-1\r\n", b"$0\r\n\r\n", b"$6\r\na\r\n:1b\r\n", b"$1\r\n|\r\n"]),
            ",": self.random.choice([b",1.5\r\n", b",inf\r\n", b",1e3\r\n"]),
            "_": b"_\r\n",
            "#": b"#t\r\n",
            "(": b"(%d\r\n" % 10**30,
            "=": b"=6\r\ntxt:ab\r\n",
        }
        return made[sort]

    def attribute(self) -> bytes:
        return b"|1\r\n" + self.reply(2) + self.reply(2) if self.random.random() < 0.3 else b""


@pytest.mark.parametrize("kept", [10, 16_384])
@pytest.mark.parametrize("seed", range(40))
def test_it_reads_as_hiredis_does_and_leaves_attributes_out(
    monkeypatch: pytest.MonkeyPatch, kept: int, seed: int
) -> None:
    monkeypatch.setattr(module, "_KEPT", kept)
    nothing = object()
    sender = _Sender(seed)
    for with_attributes in (False, True) * 10:
        sent = [sender.reply() for _ in range(sender.random.randint(1, 12))]
        known = hiredis.Reader(replyError=error_of, notEnoughData=nothing)
        known.feed(b"".join(sent))
        expected = list(iter(known.gets, nothing))
        data = b"".join((sender.attribute() if with_attributes else b"") + one for one in sent)
        replies, found, at = Replies(), [], 0
        while at < len(data):
            piece = sender.random.randint(1, 20)
            found += replies.read(data[at : at + piece])
            at += piece
        assert repr(found) == repr(expected)
        assert [type(one) for one in found] == [type(one) for one in expected]
        assert not replies.partial


def test_what_is_kept_to_be_read_again_is_bounded() -> None:
    replies = Replies()
    for number in range(20_000):
        assert list(replies.read(b":%d\r\n" % number)) == [number]
        assert replies._size <= 16_384 + 10
    assert list(replies.read(ATTRIBUTE + b":1\r\n")) == [1]
    long = b"$1000000\r\n" + 1_000_000 * b"x" + b"\r\n"
    assert [
        len(one) for at in range(0, len(long), 65_536) for one in replies.read(long[at : at + 65_536])
    ] == [1_000_000]
    assert isinstance(next(iter(replies.read(b">1\r\n+x\r\n"))), PushNotification)
