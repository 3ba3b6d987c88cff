"""Which master counts, of what several Sentinels say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio.sentinel import Sentinel

from aiolocks.transport.driver import UnreadableReplyError
from aiolocks.transport.sentinel import Naming

OLD, NEW, NEWEST = ("10.0.0.1", 6379), ("10.0.0.2", 6379), ("10.0.0.3", 6379)


class Said:
    """The Sentinels of a client, which are never asked, and what is told of them."""

    def __init__(self, *, least: int = 0, force: str | None = None) -> None:
        sentinel: Any = Sentinel([("127.0.0.1", 1), ("127.0.0.1", 2)], min_other_sentinels=least)
        sentinel._force_master_ip = force
        pool = sentinel.master_for("locks").connection_pool
        self.renamed: list[tuple[str, int]] = []
        self.naming = Naming(pool, asyncio.get_running_loop(), self.renamed.append)
        self.naming.stop()
        self.one, self.two = self.naming._listening

    def answers(self, by: Any, address: tuple[str, int], epoch: int, *, others: int = 1) -> None:
        about = [b"config-epoch", b"%d" % epoch, b"num-other-sentinels", b"%d" % others]
        self.naming.answered(by, about, [address[0].encode(), b"%d" % address[1]])

    def tells(self, channel: bytes, text: str) -> None:
        self.naming.told(channel, text.encode())


async def test_none_counts_before_all_have_answered() -> None:
    said = Said()
    said.answers(said.one, OLD, 4)
    assert said.renamed == []
    said.answers(said.two, NEW, 5)
    assert said.renamed == [NEW]


async def test_one_that_cannot_be_asked_is_not_waited_for() -> None:
    said = Said()
    said.naming.unheard(said.one, OSError("refused"))
    assert said.renamed == []
    said.answers(said.two, NEW, 5)
    assert said.renamed == [NEW]


async def test_one_that_is_cut_off_from_the_others_goes_on_naming_the_old_one() -> None:
    said = Said()
    said.answers(said.one, OLD, 4)
    said.answers(said.two, OLD, 4)
    said.answers(said.two, NEW, 5)
    for _ in range(3):
        said.answers(said.one, OLD, 4)
        said.answers(said.two, NEW, 5)
    assert said.renamed == [OLD, NEW]


async def test_what_is_told_counts_at_once() -> None:
    said = Said()
    said.tells(b"+promoted-slave", "slave 10.0.0.2:6379 10.0.0.2 6379 @ locks 10.0.0.1 6379")
    assert said.renamed == [NEW]
    assert said.naming.news == NEW
    said.tells(b"+switch-master", "locks 10.0.0.1 6379 10.0.0.2 6379")
    assert said.renamed == [NEW]
    said.tells(b"+switch-master", "locks 10.0.0.2 6379 10.0.0.3 6379")
    assert said.renamed == [NEW, NEWEST]


@pytest.mark.parametrize(
    ("channel", "text"),
    [
        (b"+switch-master", "others 10.0.0.1 6379 10.0.0.2 6379"),
        (b"+promoted-slave", "slave 10.0.0.2:6379 10.0.0.2 6379 @ others 10.0.0.1 6379"),
        (b"+switch-master", "locks"),
        (b"+sdown", "master locks 10.0.0.1 6379 x"),
    ],
)
async def test_of_others_nothing_is_heard(channel: bytes, text: str) -> None:
    said = Said()
    said.tells(channel, text)
    assert said.renamed == []


async def test_the_settings_of_the_client_count() -> None:
    said = Said(least=1, force="203.0.113.7")
    said.answers(said.one, NEW, 5, others=0)
    said.answers(said.two, OLD, 4)
    assert said.renamed == [("203.0.113.7", 6379)]


async def test_an_answer_that_cannot_be_read() -> None:
    said = Said()
    with pytest.raises(UnreadableReplyError, match="Sentinel"):
        said.naming.answered(said.one, [b"config-epoch"], None)
