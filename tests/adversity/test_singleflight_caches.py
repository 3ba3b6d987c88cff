"""A cache gives what it cannot keep, and answers of web frameworks are the same for callers elsewhere."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from decimal import Decimal
from typing import Any

import fastapi
import pytest
import starlette.exceptions
from aiohttp import web

from aiolocks import RemoteCallError, ResultNotKeptError, Session, SingleFlight
from tests.adversity.flights import Work, joined, running, within
from tests.conftest import Connect, OwnServer

PRICE = Decimal("17.50")


# -- values that cannot be kept


async def test_a_cache_gives_what_it_cannot_keep_with_a_warning(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    @SingleFlight(session)("price:{city}", keep=60)
    async def price(city: str) -> Decimal:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.02)
        return PRICE

    assert await asyncio.gather(price("rome"), price("rome")) == [PRICE, PRICE]
    assert calls == 1
    (record,) = [one for one in caplog.records if "price:rome" in one.getMessage()]
    assert record.levelno == logging.WARNING
    assert "Decimal" in record.getMessage()
    assert await price("rome") == PRICE  # nothing is kept that would be in the way
    assert calls == 2


async def test_a_caller_elsewhere_makes_what_the_cache_could_not_keep(
    session: Session, connect: Connect
) -> None:
    async with Session(connect()) as other:
        here, there = Work(PRICE), Work("there")
        first = asyncio.create_task(SingleFlight(session)("k", keep=60)(_calling(here))())
        await running(here, session)
        second = await joined(other, SingleFlight(other), "k", there, keep=60, stale=1)
        there.end.set()
        here.end.set()
        assert await within(10, first, second) == [PRICE, "there"]
        assert (here.begun, there.begun) == (1, 1)


async def test_of_an_idempotency_key_it_stays_an_error(session: Session) -> None:
    work = Work(PRICE)
    work.end.set()
    for _ in range(2):
        with pytest.raises(ResultNotKeptError):
            await SingleFlight(session).do("k", work, keep=60)
    assert work.begun == 1


async def test_a_cache_gives_a_value_that_is_too_large(connect: Connect) -> None:
    async with Session(connect(), largest_value=100) as session:

        @SingleFlight(session)("k", keep=60)
        async def large() -> str:
            return "x" * 200

        assert await large() == "x" * 200


def _calling(work: Work) -> Any:
    async def call() -> Any:
        return await work()

    return call


# -- errors that are answers

NOT_FOUND = fastapi.HTTPException(404, {"code": 7}, headers={"X-Why": "gone"})


async def raised_elsewhere(session: Session, connect: Connect, error: Exception) -> BaseException:
    """What a caller of another session gets where the runner of this one has raised that."""
    async with Session(connect()) as other:
        work = Work(error)
        first = asyncio.create_task(SingleFlight(session).do("k", work))
        await running(work, session)
        second = await joined(other, SingleFlight(other), "k", Work())
        work.end.set()
        here, there = await within(10, first, second)
    assert here is error
    assert isinstance(there, BaseException)
    return there


class Gone(fastapi.HTTPException):
    """Of a user, who may have any arguments."""

    def __init__(self) -> None:
        super().__init__(410, "gone")


@pytest.mark.parametrize(
    ("error", "status", "detail", "headers"),
    [
        (NOT_FOUND, 404, {"code": 7}, {"X-Why": "gone"}),
        (starlette.exceptions.HTTPException(401, headers={"WWW-Authenticate": "Basic"}), 401, "Unauthorized",
         {"WWW-Authenticate": "Basic"}),
        (Gone(), 410, "gone", None),
        (fastapi.HTTPException(400, {"not": b"JSON"}), 400, str({"not": b"JSON"}), None),
        (fastapi.HTTPException(400, "x" * 10_000), 400, "Bad Request", None),
    ],
)  # fmt: skip
async def test_of_fastapi(
    session: Session, connect: Connect, error: Any, status: int, detail: Any, headers: Any
) -> None:
    there = await raised_elsewhere(session, connect, error)
    assert isinstance(there, starlette.exceptions.HTTPException)
    assert isinstance(there, fastapi.HTTPException) == isinstance(error, fastapi.HTTPException)
    assert (there.status_code, there.headers) == (status, headers)
    assert there.detail == detail
    assert isinstance(there.__cause__, RemoteCallError)


async def test_of_aiohttp(session: Session, connect: Connect) -> None:
    there = await raised_elsewhere(
        session, connect, web.HTTPNotFound(text="no such city", headers={"X-Why": "gone"})
    )
    assert isinstance(there, web.HTTPNotFound)
    assert (there.status, there.text, there.headers["X-Why"]) == (404, "no such city", "gone")
    there = await raised_elsewhere(session, connect, web.HTTPMethodNotAllowed("PUT", ["GET"]))
    assert isinstance(there, web.HTTPMethodNotAllowed)
    assert (there.status, there.headers["Allow"]) == (405, "GET")
    there = await raised_elsewhere(session, connect, web.HTTPFound("/elsewhere"))
    assert isinstance(there, web.HTTPFound)
    assert (there.status, there.headers["Location"]) == (302, "/elsewhere")


async def test_of_aiohttp_by_a_user(session: Session, connect: Connect) -> None:
    class HTTPNotFound(web.HTTPException):  # of another status than that of aiohttp
        status_code = 418

    there = await raised_elsewhere(session, connect, HTTPNotFound(text="short and stout"))
    assert isinstance(there, web.HTTPException)
    assert not isinstance(there, web.HTTPNotFound)
    assert (there.status, there.text) == (418, "short and stout")


async def test_in_another_framework(
    session: Session, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fastapi.exceptions", "starlette.exceptions"):
        monkeypatch.delitem(sys.modules, name)
    there = await raised_elsewhere(session, connect, NOT_FOUND)
    assert isinstance(there, web.HTTPException)
    assert there.text is not None
    assert (there.status, json.loads(there.text)) == (404, {"detail": {"code": 7}})
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "aiohttp.web_exceptions")
    there = await raised_elsewhere(session, connect, web.HTTPConflict(text="twice"))
    assert isinstance(there, fastapi.HTTPException)
    assert (there.status_code, there.detail) == (409, "twice")
    assert not there.headers  # that of a text is not that of JSON


async def test_where_no_framework_is_loaded(
    session: Session, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fastapi.exceptions", "starlette.exceptions", "aiohttp.web_exceptions"):
        monkeypatch.delitem(sys.modules, name)
    there = await raised_elsewhere(session, connect, NOT_FOUND)
    assert isinstance(there, RemoteCallError)
    assert there.message == str(NOT_FOUND)
    assert there.type_name == "fastapi.exceptions.HTTPException"


@pytest.mark.parametrize("text", ["a\0b", 'a\0{"status": "x"}', "a\0[1]", "a\0{}"])
async def test_a_message_stays_as_it_is(session: Session, connect: Connect, text: str) -> None:
    there = await raised_elsewhere(session, connect, ValueError(text))
    assert isinstance(there, RemoteCallError)
    assert there.message == text


# -- the server


async def test_a_cache_gives_its_value_though_the_server_is_gone(
    own_server: OwnServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "aiolocks.session")
    own = await own_server()
    async with Session(connect(own)) as session:

        @SingleFlight(session, ttl=2)("k", keep=60)
        async def number() -> int:
            own.kill()
            return 7

        began = asyncio.get_running_loop().time()
        assert await number() == 7
        # Not for a second lease, which nobody can give.
        assert asyncio.get_running_loop().time() - began < 3.9
    assert [one for one in caplog.records if "'k'" in one.getMessage() and "published" in one.getMessage()]


async def test_a_cache_gives_what_the_server_refuses(own_server: OwnServer, connect: Connect) -> None:
    own = await own_server(arguments=("--proto-max-bulk-len", "1mb"))
    async with Session(connect(own), largest_value=4_000_000) as session:

        @SingleFlight(session, ttl=2)("k", keep=60)
        async def large() -> str:
            return "x" * 2_000_000

        assert len(await large()) == 2_000_000
        assert len(await large()) == 2_000_000


async def test_with_stale_it_is_a_cache_too(session: Session) -> None:
    work = Work(PRICE)
    work.end.set()
    for times in ({"keep": 60, "stale": 1}, {"keep": 60, "early": 1}):
        assert await SingleFlight(session).do("k", work, **times) == PRICE
