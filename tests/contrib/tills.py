"""A shop's till, as an application of each framework: what it does is counted."""

# Annotations are objects here: FastAPI looks at them.

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from aiolocks import Session
from aiolocks.contrib.aiohttp import session_ctx
from aiolocks.contrib.fastapi import session_lifespan
from aiolocks.contrib.idempotency import IdempotencyMiddleware
from aiolocks.contrib.idempotency.aiohttp import idempotency_middleware
from aiolocks.contrib.idempotency.fastapi import idempotent_route
from tests.contrib.serving import aiohttp_serves, uvicorn_serves
from tests.support.spoiling import spoil

Answer = tuple[int, list[tuple[str, str]], bytes | list[bytes]]
CHUNK = b"0123456789" * 1000


class Till:
    """The work of a handler for `{"do": …}`.

    Attributes:
        rung_up: How often it has begun.
        closed: Set by a test: those that wait may end.
    """

    def __init__(self) -> None:
        self.rung_up = 0
        self.ended = 0
        self.closed = asyncio.Event()

    async def ring_up(self, body: bytes) -> Answer:
        self.rung_up += 1
        do = json.loads(body)["do"]
        if do in ("wait", "burn", "refuse"):
            await self.closed.wait()
        self.ended += 1
        if do == "spoil":
            await spoil()
        if do in ("raise", "burn", "spoil"):
            raise RuntimeError("out of paper")
        headers = [
            ("Content-Type", "text/plain"),
            ("X-Receipt", str(self.rung_up)),
            ("Set-Cookie", "a=1"),
            ("Set-Cookie", "b=2"),
        ]
        if do == "stream":
            return 200, headers, [CHUNK] * 10
        if isinstance(do, int) or do == "refuse":
            do = do if isinstance(do, int) else 500
            return do, headers, f"refused {self.rung_up}".encode()
        return 201, headers, f"receipt {self.rung_up} \0\xff".encode("latin-1")


Serves = Callable[..., AbstractAsyncContextManager[str]]
"""Serves a till: `async with serves(till, session, **options) as url`."""


def asgi(till: Till, session: Session, **options: Any) -> AbstractAsyncContextManager[str]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        body = b""
        while (message := await receive()).get("more_body", False):
            body += message["body"]
        status, headers, whole = await till.ring_up(body + message["body"])
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        parts = whole if isinstance(whole, list) else [whole[:3], whole[3:]]
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def user(scope: Any) -> str:
        return str(dict(scope["headers"]).get(b"x-user", b"me").decode())

    return uvicorn_serves(IdempotencyMiddleware(app, session, scope=user, **options))


def fastapi(till: Till, session: Session, **options: Any) -> AbstractAsyncContextManager[str]:
    async def user(x_user: Annotated[str, Header()] = "me") -> str:
        if x_user == "nobody":
            raise HTTPException(401, "who are you?")
        return x_user

    async def of_user(user: Annotated[str, Depends(user)]) -> str:
        return user

    router = APIRouter(route_class=idempotent_route(scope=of_user, **options))

    @router.api_route("/pay", methods=["POST", "PATCH", "PUT"])
    @router.post("/refund")
    async def pay(request: Request, user: Annotated[str, Depends(user)]) -> Response:
        status, headers, body = await till.ring_up(await request.body())
        answer: Response
        if isinstance(body, list):

            async def parts() -> AsyncIterator[bytes]:
                for part in body:
                    yield part

            answer = StreamingResponse(parts(), status)
        else:
            answer = Response(body, status)
        del answer.headers["content-type"]
        for name, value in headers:
            answer.headers.append(name, value)
        return answer

    app = FastAPI(lifespan=session_lifespan(session))
    app.include_router(router)
    return uvicorn_serves(app)


def aiohttp(till: Till, session: Session, **options: Any) -> AbstractAsyncContextManager[str]:
    async def pay(request: web.Request) -> web.StreamResponse:
        status, headers, body = await till.ring_up(await request.read())
        if isinstance(body, list):
            streamed = web.StreamResponse(status=status, headers=headers)
            await streamed.prepare(request)
            for part in body:
                await streamed.write(part)
            await streamed.write_eof()
            return streamed
        return web.Response(status=status, headers=headers, body=body)

    async def user(request: web.Request) -> str:
        return request.headers.get("X-User", "me")

    app = web.Application(middlewares=[idempotency_middleware(scope=user, **options)])
    app.cleanup_ctx.append(session_ctx(session))
    for path in ("/pay", "/refund"):
        app.router.add_route("*", path, pay)
    return aiohttp_serves(app, lingering_time=0)  # seconds for the rest of a body that nobody reads


each = pytest.mark.parametrize("serves", [asgi, fastapi, aiohttp], ids=lambda it: it.__name__)


async def sent(
    http: httpx.AsyncClient,
    url: str,
    do: Any,
    key: str | None = '"k"',
    *,
    method: str = "POST",
    **headers: str,
) -> httpx.Response:
    own = {} if key is None else {"Idempotency-Key": key}
    own |= {name.replace("_", "-"): value for name, value in headers.items()}
    path = url if url.count("/") > 2 else f"{url}/pay"
    return await http.request(method, path, content=json.dumps({"do": do}), headers=own)


def whole(answer: httpx.Response) -> Any:
    """The part that is the same in each replay."""
    others = (b"date", b"set-cookie", b"idempotent-replayed")
    headers = [pair for pair in answer.headers.raw if pair[0].lower() not in others]
    return answer.status_code, headers, answer.content


def reason(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == answer.status_code
    return answer.status_code, answer.json()["reason"]
