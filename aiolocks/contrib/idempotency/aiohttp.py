"""Idempotency keys for aiohttp.

```python
app = web.Application(middlewares=[idempotency_middleware(scope=user_of, required=True)])
app.cleanup_ctx.append(session_ctx("redis://localhost:6379"))
```
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Unpack

from ..._extras import install

try:
    from aiohttp import web
    from multidict import CIMultiDict
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("aiohttp", "multidict"):
        raise
    raise ModuleNotFoundError(
        f"aiolocks.contrib.idempotency.aiohttp needs aiohttp: {install('aiohttp')}", name=error.name
    ) from error

from ...lock.sources import Client, source_of
from .._handling import Handling
from ..aiohttp import session_of_request
from . import _problems as problems
from ._content import chosen
from ._keys import fingerprint_of, parsed
from ._once import Once
from ._policy import Options, Policy, asker, check_scope
from ._problems import Failed, Problem
from ._record import Record, Unkept

__all__ = ["idempotency_middleware"]


def __dir__() -> list[str]:
    """The public names alone."""
    return [*__all__]


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def idempotency_middleware(
    *,
    scope: Callable[[web.Request], str | Awaitable[str | None] | None],
    client: Client | None = None,
    **options: Unpack[Options],
) -> Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]:
    """Makes a middleware that runs each request with an `Idempotency-Key` once.

    It does what `IdempotencyMiddleware` does. If the handler streams its answer (`StreamResponse`,
    `FileResponse`), only the first client gets it, and the key is answered 409 from then on. With `store`,
    the transaction is rolled back and the answer is 500. If the handler has already sent the answer itself,
    the transaction is committed, and the key is answered 409.

    Args:
        scope: A function of the request, `async` or not, that returns who asks, as a str. None means that the
            user is unknown, and the answer is 400; see `IdempotencyMiddleware`. An error that it raises ends
            the request.
        client: A client, or a `Session`, of the server that keeps the answers. You close it. Default: the
            session of `session_ctx`.
        **options: The options of `IdempotencyMiddleware`.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """
    check_scope(scope)
    source = None if client is None else source_of(client)
    policy = Policy.of(options)
    once = Once(policy)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method.upper() not in policy.methods:
            return await handler(request)
        try:
            key = parsed(request.headers.getall(policy.header, []))
            if key is None:
                if policy.required:
                    raise problems.missing(policy.header)
                return await handler(request)
            said = scope(request)
            who = asker(await said if inspect.isawaitable(said) else said)
            request, body = await _with_body(request, policy.max_body)
            content = chosen(policy.fingerprint, request.headers.get("Content-Type", ""), body)

            async def work() -> Record | Unkept:
                handling = Handling()
                with handling.as_current():
                    answer = await _answer(handler, request)
                recorded, headers = _recorded(answer, policy.max_answer), _pairs(answer.headers.items())
                if not policy.is_result(answer.status, headers, handling, marked=False):
                    raise Failed(answer=recorded)
                return recorded

            answer = await once.serve(
                session_of_request(request) if source is None else source,
                asker=who,
                key=key,
                fingerprint=fingerprint_of(
                    request.method, request.path, request.query_string.encode(), content
                ),
                route=f"{request.method} {request.path}",
                work=work,
            )
        except Problem as problem:
            answer = problem.record(policy.documentation)
        if isinstance(answer, Unkept):
            unkept: web.StreamResponse = answer.answer
            return unkept
        return _response(answer)

    return middleware


async def _with_body(request: web.Request, most: int) -> tuple[web.Request, bytes]:
    """The request with its body; aiohttp's own limit counts too, if it is less.

    Raises:
        Problem: The body is longer.
    """
    limit = request.client_max_size
    most = min(most, limit) if limit else most
    if (request.content_length or 0) > most:
        raise problems.too_long(most)
    with contextlib.suppress(RuntimeError):  # another middleware has read the body, which the request keeps
        headers = CIMultiDict(request.headers)
        # The record is for all that send the request again, and some of them read no compressed answer.
        headers.popall("Accept-Encoding", None)
        # A limit of 0 would be none.
        request = request.clone(client_max_size=max(1, most), headers=headers)
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise problems.too_long(most) from None
    if len(body) > most:
        raise problems.too_long(most)
    return request, body


async def _answer(handler: Handler, request: web.Request) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as answer:
        return answer


def _recorded(answer: web.StreamResponse, most: int) -> Record | Unkept:
    if not isinstance(answer, web.Response) or answer.prepared:
        return Unkept("the answer is streamed", answer, sent=answer.prepared)
    body: Any = answer.body
    if body is None:
        body = b""
    if not isinstance(body, (bytes, bytearray)):
        return Unkept("the answer is streamed", answer)
    if len(body) > most:
        return Unkept("the answer is longer than max_answer", answer)
    headers = [*answer.headers.items()]
    headers += [("Set-Cookie", cookie.OutputString()) for cookie in answer.cookies.values()]
    return Record(answer.status, _pairs(headers), bytes(body))


def _pairs(headers: Iterable[tuple[str, str]]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((name.encode(), value.encode(errors="surrogateescape")) for name, value in headers)


def _response(record: Record) -> web.Response:
    headers = CIMultiDict(
        (name.decode(), value.decode(errors="surrogateescape")) for name, value in record.sent
    )
    return web.Response(status=record.status, headers=headers, body=record.body)
