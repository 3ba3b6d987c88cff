"""One line of the log for what many have for the same reason."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import pairwise

import pytest

from aiolocks.lock import together
from tests.unit.fakes import VirtualClock

log = logging.getLogger("aiolocks.session")
request: ContextVar[str] = ContextVar("request", default="none")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[list[tuple[int, str, str]]]:
    """Level, text and request of each line, also of those at DEBUG."""
    lines: list[tuple[int, str, str]] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append((record.levelno, record.getMessage(), request.get()))

    caplog.set_level(logging.DEBUG, logger="aiolocks")
    handler = Handler()
    log.addHandler(handler)
    yield lines
    log.removeHandler(handler)


def lost(name: str, why: str = "it is gone", *, more: bool = True, error: Exception | None = None) -> None:
    together.tell(
        log,
        logging.WARNING,
        "%s was lost: %s",
        *(name, why),
        name=name,
        many="%d were lost: %s: %s",
        why=why,
        more=more,
        error=error,
    )


def warnings(lines: list[tuple[int, str, str]]) -> list[str]:
    return [text for level, text, _ in lines if level == logging.WARNING]


async def test_many_have_one_line_with_ten_names(
    clock: VirtualClock, said: list[tuple[int, str, str]]
) -> None:
    for number in range(500):
        lost(f"n{number}")
        if number == 250:
            await asyncio.sleep(0.04)
    assert warnings(said) == []
    await asyncio.sleep(0.06)
    assert warnings(said) == [
        "500 were lost: it is gone: n0, n1, n2, n3, n4, n5, n6, n7, n8, n9 and 490 more"
    ]
    assert [text for level, text, _ in said if level == logging.DEBUG] == [
        f"n{number} was lost: it is gone" for number in range(500)
    ]


async def test_one_alone_is_told_as_ever_in_its_own_context(
    clock: VirtualClock, said: list[tuple[int, str, str]]
) -> None:
    request.set("GET /orders")
    lost("a", more=False)
    lost("b")
    request.set("another")
    lost("c", "another reason")
    assert said == [
        (logging.WARNING, "a was lost: it is gone", "GET /orders"),
        (logging.DEBUG, "b was lost: it is gone", "GET /orders"),
        (logging.DEBUG, "c was lost: another reason", "another"),
    ]
    await asyncio.sleep(0.1)
    assert said[3:] == [
        (logging.WARNING, "b was lost: it is gone", "GET /orders"),
        (logging.WARNING, "c was lost: another reason", "another"),
    ]


async def test_the_last_one_joins_those_before_it(
    clock: VirtualClock, said: list[tuple[int, str, str]]
) -> None:
    lost("a")
    lost("b", more=False)
    await asyncio.sleep(0.1)
    assert warnings(said) == ["2 were lost: it is gone: a, b"]


async def test_durations_make_no_other_reason(clock: VirtualClock, said: list[tuple[int, str, str]]) -> None:
    lost("a", "it ends in 0.598 s")
    lost("b", "it ends in 0.610 s")
    lost("b", "it ends in 2 days")
    await asyncio.sleep(0.1)
    assert warnings(said) == ["2 were lost: it ends in 0.598 s: a, b", "b was lost: it ends in 2 days"]


async def test_a_name_that_comes_again_stands_there_once(
    clock: VirtualClock, said: list[tuple[int, str, str]]
) -> None:
    for _ in range(30):
        lost("a")
    await asyncio.sleep(0.1)
    assert warnings(said) == ["30 were lost: it is gone: a"]


async def test_what_goes_on_has_rarer_lines(clock: VirtualClock, said: list[tuple[int, str, str]]) -> None:
    """And each of them is in one line, at most ten seconds later."""
    began, at = clock.now(), list[float]()
    sent = 0
    while clock.now() < began + 60:
        lost(f"n{sent % 3}")
        sent += 1
        before = len(warnings(said))
        await asyncio.sleep(0.02)
        if len(warnings(said)) > before:
            at.append(clock.now() - began)
    await asyncio.sleep(10)
    assert sum(int(text.split()[0]) for text in warnings(said)) == sent
    assert [round(later - one) for one, later in pairwise(at)] == [1, 2, 4, 8, *4 * [10]]
    assert at[0] <= 0.6
    await asyncio.sleep(11)
    said.clear()
    lost("a")
    await asyncio.sleep(0.06)
    assert warnings(said) == ["a was lost: it is gone"], "after a rest, it begins anew"


async def test_the_traceback_of_the_first_is_there(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    lost("a", error=ValueError("the first"))
    lost("b", error=ValueError("the second"))
    await asyncio.sleep(0.1)
    assert "ValueError: the first" in caplog.text
    assert "ValueError: the second" not in caplog.text


def test_outside_of_a_loop_it_is_told_at_once(said: list[tuple[int, str, str]]) -> None:
    lost("a")
    assert warnings(said) == ["a was lost: it is gone"]


def test_what_a_loop_has_not_told_is_told_after_its_end(said: list[tuple[int, str, str]]) -> None:
    async def lose() -> None:
        lost("a")
        lost("b")

    asyncio.run(lose())
    gc.collect()
    assert warnings(said) == ["2 were lost: it is gone: a, b"]


async def test_what_a_session_has_lost_is_told_when_it_is_closed(said: list[tuple[int, str, str]]) -> None:
    lost("a")
    together.flush()
    assert warnings(said) == ["a was lost: it is gone"]
    together.flush()
    await asyncio.sleep(0.1)
    assert len(warnings(said)) == 1
