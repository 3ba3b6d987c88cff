"""The middleware for ASGI applications."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final, Unpack, final

from ...lock.sources import Client, source_of
from .._handling import ASKED, Handling, Question
from . import _problems as problems
from ._asgi import App, Body, Exchange, HungUpError, Message, Receive, Scope, Send, answer_with
from ._content import chosen
from ._keys import fingerprint_of, parsed
from ._once import Once
from ._policy import Options, Policy, asker, check_scope
from ._problems import Problem
from ._record import Record, Unkept

Asked = Callable[[Scope, Body, Send], Awaitable[tuple[Any, str] | None]]
"""Client or session, and the user that asks; None when the request was answered."""

_SEEN: Final = "aiolocks.idempotency"
"""In the scope of a request that has a middleware already, outside of this one."""


@final
class IdempotencyMiddleware:
    """Runs each request with an `Idempotency-Key` once, and answers a repetition from its record.

    ```python
    app = IdempotencyMiddleware(app, redis, scope=lambda scope: user_of(scope))
    ```

    With Starlette: `app.add_middleware(IdempotencyMiddleware, client=redis, scope=...)`. For FastAPI, see
    `aiolocks.contrib.idempotency.fastapi`; for aiohttp, `aiolocks.contrib.idempotency.aiohttp`.

    The first request with a key runs the handler. A later request is a repetition if it has the same key,
    user, method, path, query and body (as `fingerprint` compares bodies). It gets the status, headers and
    body of the first answer, byte for byte, without cookies and without the fields of rate limits, and with
    `Idempotent-Replayed: true`. Answers of the middleware itself are `application/problem+json`.

    If the client disconnects, the handler is not cancelled, and does not see the disconnection. The answer is
    collected; the client gets it when it is whole and recorded. Websockets, requests with other methods, and
    requests without a key pass unchanged.

    Args:
        app: The application.
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        scope: Returns who asks, as a str: a function of the ASGI scope, `async` or not. Users have separate
            keys. If the application serves several hosts, the host must be part of the result. None and an
            empty str mean that the user is unknown: the answer is 400. An error that it raises ends the
            request. It is called before the body is read, for each request with a key, also for a repetition.
        header: The name of the header. Default: `Idempotency-Key`.
        methods: The methods for which the header counts. Default: POST and PATCH.
        required: Whether a request of these methods without a key is refused with 400. Default: False.
        wait: Seconds that a repetition waits while the first request runs, before the answer is 409. Default:
            0.
        keep: Seconds that an answer is kept, and that a key is refused after a crash. Default: 86 400, a day.
        ttl: Seconds after which other processes know that a process has died. Until then its keys are
            answered 409 `running`. Default: 30. It does not limit how long a handler may take. See
            `SingleFlight`.
        on_crash: What happens to a request if the process that ran it first has died, so that, without
            `store`, its effect is unknown. `"refuse"` answers 409 for as long as `keep`. `"run"` runs the
            handler again. Default: `"refuse"`.
        store: Keeps the records in your database, in the transaction of the handler. Then each request takes
            effect exactly once. See `Store`. Default: None, records are only in Redis.
        keeps: A function of the status that returns whether an answer is kept. If it is not kept, only its
            own client gets it, and the next request with the key runs the handler. Default: all but 429 and
            5xx, if the handler has said that it begins (`handler_begins`). Otherwise all below 400, and
            402, 409, 410 and 412, because other refusals may come from code before the handler. An error with
            `Retry-After` is never kept.
        fingerprint: What makes two bodies the same. `"body"`: their bytes. If a client builds the body again
            for a retry, the bytes may differ although the content is the same; then the answer is 422.
            `"content"`: JSON may have other white space, and the names of its objects another order; a
            `multipart` body may have another boundary. Numbers, strings, and the order of lists and parts
            must be the same; bodies of other types are compared by their bytes. Or a function of the content
            type (a str, empty if there is none) and the body (bytes) that returns bytes or a str to compare.
            If you change this option, older records no longer match, and a retry then gets 422. Default:
            `"body"`.
        max_body: Bytes that the body of a request with a key may have. A longer body is answered 413 before
            the handler runs. Default: 1 MiB.
        max_answer: Bytes that an answer may have to be kept. A longer answer goes to its client as the
            handler sends it, and the key is answered 409 from then on. With `store`, the transaction is
            rolled back, and the answer is 500. Default: 64 KiB; with `store`, 512 KiB.
        max_kept: Bytes that are kept for one user, of the answers that this process has made. It is a
            bound in the long run; at any time there may be twice as many. Default: 16 MiB; None: no bound.
            When it is reached, an answer of more than 1 KiB goes only to its own client, and its key is
            answered 409 from then on. Answers in a `store` do not count.
        retry_after: Seconds for `Retry-After` of an answer that says that the first request is running.
            Default: the median of the last 15 requests of the same method and path in this process; 1 s if
            there are none.
        documentation: URL of a page that explains the key to clients. It is the `type` of the middleware's
            answers, and in their `Link` header. Default: None.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """

    __slots__ = ("_protected",)

    def __init__(
        self,
        app: App,
        client: Client,
        *,
        scope: Callable[[Scope], str | Awaitable[str | None] | None],
        **options: Unpack[Options],
    ) -> None:
        source = source_of(client)
        check_scope(scope)

        async def asked(request: Scope, _body: Body, _send: Send) -> tuple[Any, str]:
            who = scope(request)
            return source, asker(await who if inspect.isawaitable(who) else who)

        self._protected = Protected(app, Policy.of(options), asked)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by the server."""
        await self._protected(scope, receive, send)


@final
class Protected:
    """An application whose requests with a key are done once.

    Args:
        app: The application.
        policy: The options.
        asked: Says who asks.
        marked: It is a route of FastAPI as `idempotent_route` makes them: its handler says that it begins,
            and its dependencies can be asked alone.
    """

    __slots__ = ("_app", "_asked", "_header", "_marked", "_once", "_policy")

    def __init__(self, app: App, policy: Policy, asked: Asked, *, marked: bool = False) -> None:
        self._app = app
        self._policy = policy
        self._asked = asked
        self._marked = marked
        self._header = policy.header.lower().encode("ascii")
        self._once = Once(policy)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _SEEN in scope:
            await self._app(scope, receive, send)
            return
        # A dependency of another request may make this one in this process, and that handler has not begun.
        with Handling().as_current():
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"].upper() not in self._policy.methods:
            await self._app(scope, receive, send)
            return
        try:
            key = parsed(
                [value.decode("latin-1") for name, value in scope["headers"] if name == self._header]
            )
            if key is None and self._policy.required:
                raise problems.missing(self._policy.header)
            if key is not None:
                await self._once_for(key, {**scope, _SEEN: True}, receive, send)
        except Problem as problem:
            await answer_with(problem.record(self._policy.documentation), send)
            return
        except HungUpError:
            return
        if key is None:
            await self._app(scope, receive, send)

    async def _once_for(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        unread = Body(dict(scope["headers"]), receive, self._policy.max_body)
        asked = await self._asked(scope, unread, send)
        if asked is None:
            return
        client, who = asked
        body = await unread.read()
        exchange = Exchange(
            self._app,
            scope,
            body,
            receive,
            send,
            policy=self._policy,
            marked=self._marked,
            task=self._once.task,
        )
        method, path = scope["method"].upper(), scope["path"]
        content_type = dict(scope["headers"]).get(b"content-type", b"").decode("latin-1")
        content = chosen(self._policy.fingerprint, content_type, body)
        answer: Record | Unkept = await self._once.serve(
            client,
            asker=who,
            key=key,
            fingerprint=fingerprint_of(method, path, scope.get("query_string", b""), content),
            route=f"{method} {path}",
            work=exchange.answer,
        )
        if isinstance(answer, Record) and (exchange.ran or await self._may(scope, unread, send)):
            await answer_with(answer, send)
        # In this task, so that a server that stops waits for it.
        await asyncio.shield(exchange.ended())

    async def _may(self, scope: Scope, body: Body, send: Send) -> bool:
        """Whether the dependencies of the route let the user have the record; if not, they have answered.

        Only the first request with a key runs them with the handler, and a user may have lost a right since.
        """
        if not self._marked:
            return True
        question = Question()
        messages: list[Message] = []

        async def collect(message: Message) -> None:
            messages.append(message)

        async with AsyncExitStack() as stack:
            if self._policy.store is not None:  # they may look something up in its transaction
                await stack.enter_async_context(self._policy.store.transaction())
            with Handling().as_current():
                try:
                    await self._app({**scope, ASKED: question}, body.channel(), collect)
                except Exception:
                    if not question.may:
                        raise
        if not question.may:
            for message in messages:
                await send(message)
        return question.may
