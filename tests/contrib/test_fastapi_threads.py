"""Plain handlers, which run in threads: what they work under is released after they have ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from redis.asyncio import Redis

from aiolocks import Lease, Limits, Lock, Session
from aiolocks.contrib.fastapi import Limited, Locked, session_lifespan
from tests.support.waiting import eventually

TTL = 1.5


def all_keys() -> dict[str, int]:
    return {"all": 1}


HOLDS = {
    "Locked": (Annotated[Lease, Locked("it", ttl=TTL)], Lock),
    "Depends(Locked)": (Annotated[Lease, Depends(Locked("it", ttl=TTL))], Lock),
    "Limited": (Annotated[Lease, Limited("it", all_keys, ttl=TTL)], Limits),
}


class Handler:
    """A plain one, which works until it is told to end."""

    def __init__(self) -> None:
        self.began, self.ends = threading.Event(), threading.Event()
        self.ended = False

    def endpoint(self, holds: Any) -> Any:
        def work(lease: holds) -> str:  # type: ignore[valid-type]
            self.began.set()
            assert self.ends.wait(10)
            self.ended = True
            return lease.name

        work.__annotations__["lease"] = holds
        return work


@pytest.fixture
def handler() -> Iterator[Handler]:
    handler = Handler()
    yield handler
    handler.ends.set()


def other(session: Session, kind: Any) -> Any:
    return kind(session, "it", {"all": 1}) if kind is Limits else kind(session, "it")


@pytest.mark.parametrize("form", HOLDS)
async def test_a_request_that_is_cancelled_is_released_when_its_thread_has_ended(
    redis: Redis, handler: Handler, form: str
) -> None:
    holds, kind = HOLDS[form]
    async with Session(redis) as session, Session(redis) as elsewhere:
        app = FastAPI(lifespan=session_lifespan(session))
        app.get("/")(handler.endpoint(holds))
        async with app.router.lifespan_context(app), client_of(app) as client:
            request = asyncio.create_task(client.get("/"))
            await eventually(handler.began.is_set)
            for _ in range(2):  # the second one while it waits for the thread
                request.cancel()
                await asyncio.sleep(0.1)
            await asyncio.sleep(1.2 * TTL)  # it is renewed
            assert await other(elsewhere, kind).try_acquire() is None
            assert not request.done()
            handler.ends.set()
            with pytest.raises(asyncio.CancelledError):
                await request
            assert handler.ended
            async with other(elsewhere, kind):
                pass


@pytest.mark.leaves_keys
@pytest.mark.parametrize("form", HOLDS)
async def test_a_session_that_closes_leaves_it_to_its_ttl(redis: Redis, handler: Handler, form: str) -> None:
    holds, kind = HOLDS[form]
    async with Session(redis) as elsewhere:
        session = Session(redis)
        app = FastAPI(lifespan=session_lifespan(session))
        app.get("/")(handler.endpoint(holds))
        async with app.router.lifespan_context(app), client_of(app) as client:
            request = asyncio.create_task(client.get("/"))
            await eventually(handler.began.is_set)
            await session.aclose()
            assert await other(elsewhere, kind).try_acquire() is None
            assert not request.done()
            handler.ends.set()
            assert (await request).status_code == 500
            async with other(elsewhere, kind):  # when its ttl has passed
                pass


async def test_a_lease_that_is_lost_is_not_waited_with(redis: Redis, handler: Handler) -> None:
    async with Session(redis) as session:
        app = FastAPI(lifespan=session_lifespan(session))
        app.get("/")(handler.endpoint(HOLDS["Locked"][0]))
        async with app.router.lifespan_context(app), client_of(app) as client:
            request = asyncio.create_task(client.get("/"))
            await eventually(handler.began.is_set)
            await redis.delete(*[key async for key in redis.scan_iter("aiolocks:lock:*")])
            assert (await request).status_code == 500
            assert not handler.ended


async def test_a_handler_whose_request_was_cancelled_before_it_got_a_thread_does_not_run(
    redis: Redis, handler: Handler
) -> None:
    """All threads are taken meanwhile."""
    holds, kind = HOLDS["Locked"]
    async with Session(redis) as session:
        app = FastAPI(lifespan=session_lifespan(session))
        app.get("/")(handler.endpoint(holds))
        others = Handler()
        app.get("/busy")(lambda: others.ends.wait(10))
        async with app.router.lifespan_context(app), client_of(app) as client:
            busy = [asyncio.create_task(client.get("/busy")) for _ in range(40)]
            await asyncio.sleep(0.2)
            request = asyncio.create_task(client.get("/"))
            await eventually(lambda: session.statistics().leases_held == 1)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            async with other(session, kind):
                pass
            others.ends.set()
            await asyncio.gather(*busy)
            assert not handler.began.is_set()


def client_of(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")
