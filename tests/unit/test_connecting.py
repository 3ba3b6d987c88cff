"""When another attempt to connect begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from aiolocks.transport.connecting import Connector
from aiolocks.transport.outages import Outage, Outages
from tests.unit.fakes import VirtualClock


class Attempts:
    """Attempts that fail at once, with the times when they began."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.failures: list[BaseException] = []
        self.wanted = True
        loop = asyncio.get_running_loop()
        self.connector = Connector(
            loop,
            self._establish,
            lambda: self.wanted,
            self.failures.append,
            failed=self.failures.append,
            outage=Outage("the server", Outages(loop)),
        )

    async def _establish(self) -> None:
        self.began.append(asyncio.get_running_loop().time())
        raise ConnectionRefusedError("refused")

    async def until(self, enough: Callable[[], bool], *, every: float, do: Callable[[], None]) -> None:
        async with asyncio.timeout(5):
            while not enough():
                do()
                await asyncio.sleep(every)


@pytest.fixture
async def attempts(clock: VirtualClock) -> Attempts:
    attempts = Attempts()
    attempts.connector.start()
    await attempts.until(lambda: len(attempts.began) == 6, every=0.01, do=lambda: None)  # the pause is 0.32 s
    return attempts


async def test_a_request_in_a_hurry_shortens_the_pause(attempts: Attempts) -> None:
    await asyncio.sleep(0.06)
    asked = asyncio.get_running_loop().time()
    attempts.connector.hurry()
    await attempts.until(lambda: len(attempts.began) == 7, every=0.001, do=lambda: None)
    assert attempts.began[-1] - asked < 0.2
    assert len(attempts.failures) == 7
    await attempts.connector.aclose()


async def test_many_of_them_make_twenty_attempts_a_second(attempts: Attempts) -> None:
    await attempts.until(lambda: len(attempts.began) >= 12, every=0.001, do=attempts.connector.hurry)
    pauses = [later - one for one, later in zip(attempts.began[6:], attempts.began[7:], strict=False)]
    assert min(pauses) > 0.045
    await attempts.connector.aclose()


async def test_cancelled_in_its_pause_it_ends(attempts: Attempts) -> None:
    with suppress(asyncio.CancelledError):
        await attempts.connector.aclose()
    attempts.connector.hurry()  # nothing waits
    assert not attempts.connector.at_work
    assert len(attempts.began) == 6
