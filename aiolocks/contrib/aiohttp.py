"""Locks in aiohttp: a decorator that holds one for the length of a handler, and a session.

```python
app = web.Application()
app.cleanup_ctx.append(session_ctx("redis://localhost:6379"))


@locked("order:{order_id}", ttl=10)
async def ship(request: web.Request) -> web.Response:
    lease = request[LEASE]
    ...


app.router.add_post("/orders/{order_id}/ship", ship)
```
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, Unpack, cast, final, overload

try:
    from aiohttp import web
except ModuleNotFoundError as error:
    if error.name != "aiohttp":
        raise
    raise ModuleNotFoundError(
        "aiolocks.contrib.aiohttp needs aiohttp: pip install aiolocks[aiohttp]", name=error.name
    ) from error

from .. import Session
from .._visible import visible
from ..errors import LockLostError
from ..kinds.lock import Lock
from ..lock.context import SessionOptions
from ..lock.lease import Lease
from ..lock.naming import NameTemplate
from ..lock.options import LockOptions, Seconds, seconds
from ._background import Work, beside, checked
from ._erring import ANSWERED, Answers
from ._handling import handler_begins
from ._holding import Kind, Recipe, holding, log, opened
from ._rates import CLIENT, KEY, TOO_MANY, Rate
from ._refusing import DETAIL, HEALTHY, UNHEALTHY, Conflict, Conflicting, Refusal, RetryAfter, filled, named

__all__ = ["LEASE", "SESSION", "error_middleware", "health", "locked", "rate_limited", "session_ctx"]

P = ParamSpec("P")
Name = str | Callable[[web.Request], str | Awaitable[str]]

SESSION: Final = web.AppKey("aiolocks_session", Session)
"""Where the application has its session: `app[SESSION]`, and `request.config_dict[SESSION]` in a handler.

It is there for the contexts in `cleanup_ctx` that stand after `session_ctx`, and until these have ended.
"""

if TYPE_CHECKING:
    LEASE: Final = web.RequestKey("aiolocks_lease", Lease)
    """Where the handler finds the lease that is held for it: `request[LEASE]`."""
    _HANDLED: Final = web.RequestKey("aiolocks_handled", bool)
else:  # before aiohttp 3.14, keys of requests were strings
    LEASE: Final = web.RequestKey("aiolocks_lease", Lease) if hasattr(web, "RequestKey") else "aiolocks_lease"
    _HANDLED: Final = (
        web.RequestKey("aiolocks_handled", bool) if hasattr(web, "RequestKey") else "aiolocks_handled"
    )

_LOOK_EVERY: Final = 0.1
"""Seconds between two looks at whether the client is there: aiohttp tells only if it is to cancel."""


def session_ctx(
    client: Any,
    *,
    background: Iterable[Work] = (),
    close: bool | None = None,
    **session_options: Unpack[SessionOptions],
) -> Callable[[web.Application], AsyncGenerator[None, None]]:
    """A context for `app.cleanup_ctx` with a session, closed when all requests are done.

    ```python
    app.cleanup_ctx.append(session_ctx("redis://localhost:6379", prefix="shop"))
    ```

    The session is found by `locked`, also in subapplications, and stands under `app[SESSION]`. It talks to
    Redis from its first use on: an application starts while Redis is away.

    Args:
        client: A URL, or a function that makes a client: that client is closed in the end. Or a client, or a
            `Session`, such as one of `Session.from_url`: it is yours to close, unless you say `close=True`.
        background: Functions `async def f(session)` that run beside the application, from this context's turn
            in `cleanup_ctx` on until its clean-up: then they are cancelled, and awaited. One that returns has
            ended, which the log says at `INFO`. One that raises is logged as an error with its traceback, and
            called again after a pause: between 0 and 1 s, double that after each further error, up to 60 s;
            after 60 s of work, between 0 and 1 s again.
        close: True closes a client or `Session` that you have given, too.
        **session_options: Options of the `Session`, as `prefix`.

    Raises:
        TypeError: `background` is not as it should be.
    """
    works = checked(background)

    async def context(app: web.Application) -> AsyncGenerator[None, None]:
        async with opened(client, session_options, close=close) as session:
            app[SESSION] = session
            async with beside(session, works):
                yield

    return context


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@final
class _ErrorMiddleware:
    """The middleware, and the function that makes one with another `status`."""

    __middleware_version__: Final = 1  # what `web.middleware` writes on a function

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    @overload
    def __call__(self, request: web.Request, handler: Handler) -> Awaitable[web.StreamResponse]: ...

    @overload
    def __call__(self, *, status: Conflict) -> Self: ...

    def __call__(
        self, request: web.Request | None = None, handler: Handler | None = None, *, status: Conflict = 423
    ) -> Awaitable[web.StreamResponse] | _ErrorMiddleware:
        """Gives errors of locks in handlers an answer of their own, where they would be 500.

        See `error_middleware`.
        """
        if request is None or handler is None:
            return _ErrorMiddleware(Answers(status))
        return self._handle(request, handler)

    async def _handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        request[_HANDLED] = True
        try:
            return await handler(request)
        except ANSWERED as error:
            if request.writer.output_size > 0:
                raise  # an answer in the middle of an answer would pass for a part of it
            session = request.config_dict.get(SESSION)
            refusal = self._answers.to(error, session=session, route=_route_of(request))
            if refusal is None:
                raise
            return web.json_response(
                {"detail": refusal.detail}, status=refusal.status, headers=refusal.headers
            )

    def __repr__(self) -> str:
        return "<error_middleware>"


error_middleware: Final = _ErrorMiddleware(Answers(423))
"""A middleware that gives errors of locks in handlers an answer of their own, where they would be 500.

```python
app = web.Application(middlewares=[error_middleware])
app = web.Application(middlewares=[error_middleware(status=409)])
```

| error | answer |
|---|---|
| `LockTimeoutError` | 423, or the `status` you chose (423, 409, 429 or 503), with `Retry-After: 1` |
| `DuplicateJobError`, `StaleFenceError` | 409 |
| `FingerprintError` | 422 |
| `BackendError`, `SessionClosedError` | 503 with `Retry-After: 1` |
| `LockLostError`, also of `locked` | 503 without it: something may have been done |
| any other error | 500 as before: it is a bug |

So is an `ExceptionGroup`, as of a `TaskGroup`, if each error in it is one of these: of several, the lowest
row of the table counts. Answers are JSON, `{"detail": "…"}`. They name neither the lock nor its holder, which
the log has, with the route: under `aiolocks.requests`, `WARNING` for 503 and `INFO` for others. Where an
answer has begun already, the connection ends, as after any error.
"""


def health(*, within: Seconds = 5.0) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A handler for a health probe: 200 if event loop and server answer in time, else 503.

    ```python
    app.router.add_get("/ready", health(within=2))
    ```

    It asks `Session.healthy` of the application's session. Where the event loop does not run, nothing is
    answered: the time-out of the prober finds that.

    Args:
        within: Seconds that the answer of the server may take; less than the time-out of the prober.

    Raises:
        TypeError, ValueError: `within` is not as it should be.
    """
    allowed = seconds("within", within, least=0.001)

    async def answer(request: web.Request) -> web.Response:
        healthy = await session_of_request(request).healthy(within=allowed)
        return web.Response(text=HEALTHY if healthy else UNHEALTHY, status=200 if healthy else 503)

    return answer


def locked(
    name: Name,
    *,
    kind: Kind = Lock,
    blocking_timeout: Seconds | None = 5.0,
    status: Conflict = 423,
    retry_after: RetryAfter | None = None,
    detail: str = DETAIL,
    cache: Seconds = 0.0,
    **options: Unpack[LockOptions],
) -> Callable[
    [Callable[P, Awaitable[web.StreamResponse]]], Callable[P, Coroutine[Any, Any, web.StreamResponse]]
]:
    """Decorates a handler: it runs while a lock is held, which is let go of when it returns.

    ```python
    @routes.post("/orders/{order_id}/ship")
    @locked("order:{order_id}", ttl=10)
    async def ship(request: web.Request) -> web.Response:
        request[LEASE].ensure_held()
        ...
    ```

    It decorates coroutine functions, methods that get the request, and the methods of a `web.View`. Put it
    below the decorator that makes the route.

    If the lock cannot be acquired, the answer is 423, or the `status` you chose, with `Retry-After`: the
    seconds for which handlers of this process have held that name lately, as a median. Where Redis does not
    answer, it is 503. When the lease is lost, the handler is cancelled and the answer is 500, or that of
    `error_middleware`; one that has begun ends with the connection. Answers are JSON, `{"detail": "…"}`. A
    client that hangs up while it waits leaves the queue. An error that the handler itself raises is never
    replaced.

    Args:
        name: A template such as `"order:{order_id}"`, whose fields are parameters of the path or, where it
            has no such parameter, of the query. The values are the texts in the URL, percent-encoded. Or a
            function of the request, `async` or not, that returns the name.
        kind: A class of locks, or a function of session and name that makes one: `lambda session, name:
            Semaphore(session, name, 3)`.
        blocking_timeout: Seconds to wait; 0 for a single try; None for as long as the client does. Default
            5 s: less than clients and proxies wait for an answer.
        status: Status of the answer if another request has it: 423, 409, 429 or 503.
        retry_after: Seconds for its `Retry-After`, or a function that is called with the
            `LockTimeoutError` and returns seconds, or None for the default. Default: the median of the last
            15 holds of that name by handlers of this process, else of names of the same template; 1 s where
            there were none. It is at least 1 s, and not more than the time that the holder's lease has left.
        detail: Text of that answer.
        cache: Of a `Lock`: seconds for which this process keeps the lease after a request, so that its next
            request for the same name sends nothing to Redis. 0: not at all.
        **options: Options of the lock: `ttl`, `auto_renew`, `max_hold`, `on_lost`, `grace`, `metadata`.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """
    recipe = Recipe(
        "locked()",
        kind=kind,
        blocking_timeout=blocking_timeout,
        conflict=Conflicting(status=status, retry_after=retry_after, detail=detail),
        options=dict(options),
        name=name,
        cache=cache,
    )
    if not isinstance(name, str) and not callable(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"name must be a str or a function of the request, not {type(name).__name__}")
    name_of = (
        functools.partial(_filled, NameTemplate(name, otherwise="pass a function"))
        if isinstance(name, str)
        else name
    )

    def decorate(
        handler: Callable[P, Awaitable[web.StreamResponse]],
    ) -> Callable[P, Coroutine[Any, Any, web.StreamResponse]]:
        if not inspect.iscoroutinefunction(handler):
            raise TypeError(
                f"locked() decorates a coroutine function, or the methods of a web.View, not {handler!r}"
            )

        @functools.wraps(handler)
        async def holds(*args: P.args, **kwargs: P.kwargs) -> web.StreamResponse:
            request, begun = _request_of(args), False
            try:
                found = name_of(request)
                if not isinstance(found, str) and inspect.isawaitable(found):
                    found = await found
                session, gone = session_of_request(request), functools.partial(_gone, request)
                async with holding(session, named(found), recipe, gone, route=_route_of(request)) as lease:
                    request[LEASE], begun = lease, True
                    handler_begins()
                    return await handler(*args, **kwargs)
            except Refusal as refusal:
                if begun and (request.writer.output_size > 0 or _HANDLED in request):
                    # An answer in the middle of an answer would pass for a part of it. For what is raised
                    # there, aiohttp closes the connection; else the middleware has an answer.
                    raise cast("LockLostError", refusal.__cause__) from None
                return web.json_response(
                    {"detail": refusal.detail}, status=refusal.status, headers=refusal.headers
                )

        return holds

    return decorate


def rate_limited(
    name: str,
    limit: int,
    *,
    per: Seconds,
    burst: int | None = None,
    key: Callable[[web.Request], object] | None = None,
    blocking_timeout: Seconds | None = 0.0,
    status: Conflict = 429,
    detail: str = TOO_MANY,
) -> Callable[
    [Callable[P, Awaitable[web.StreamResponse]]], Callable[P, Coroutine[Any, Any, web.StreamResponse]]
]:
    """Decorates a handler: so many requests in so many seconds are admitted, and the others get 429.

    ```python
    @routes.get("/search")
    @rate_limited("search:{client}", 100, per=60)
    async def search(request: web.Request) -> web.Response:
        ...
    ```

    One too many is 429 with `Retry-After`. Each answer that has not begun has the fields `RateLimit-Policy`
    and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-10. Where Redis does not answer, it is 503. See
    `aiolocks.RateLimit` for what a window admits. Put it below the decorator that makes the route.

    Args:
        name: A template. `{client}` is `request.remote`: behind a proxy, the proxy's address, unless a
            middleware such as those of aiohttp-remotes replaces it. `{key}` is what `key` returns. Other
            fields are parameters of the path or, where it has no such parameter, of the query.
        limit: Requests in each `per`, in the long run.
        per: Seconds.
        burst: Requests that are admitted at once after a rest; by default, `limit`.
        key: A function of the request, `async` or not, that returns who asks, such as the id of a user.
        blocking_timeout: Seconds that a request may wait for its turn; 0 for none; None for as long as it
            takes.
        status: Status of the answer to one too many: 423, 409, 429 or 503.
        detail: Text of that answer.

    Raises:
        TypeError, ValueError: An argument is wrong. From a request: it has no address of its
            client, as over a unix socket, and the name has `{client}`.
    """
    if key is not None and not callable(key):
        raise TypeError(f"key must be a function that returns who asks, not {type(key).__name__}")
    rate = Rate(
        "rate_limited()",
        name,
        limit,
        per=per,
        burst=burst,
        blocking_timeout=blocking_timeout,
        status=status,
        detail=detail,
        has_key=key is not None,
    )

    async def values(request: web.Request) -> dict[str, str]:
        found = _values(rate.template, request, but=(CLIENT, KEY))
        if CLIENT in rate.template.fields:
            found[CLIENT] = rate.client(request.remote)
        if key is not None:
            who = key(request)
            found[KEY] = rate.key(await who if inspect.isawaitable(who) else who)
        return found

    def decorate(
        handler: Callable[P, Awaitable[web.StreamResponse]],
    ) -> Callable[P, Coroutine[Any, Any, web.StreamResponse]]:
        if not inspect.iscoroutinefunction(handler):
            raise TypeError(
                "rate_limited() decorates a coroutine function, or the methods of a web.View, not "
                f"{handler!r}"
            )

        @functools.wraps(handler)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> web.StreamResponse:
            request = _request_of(args)
            try:
                session, asked = session_of_request(request), rate.name(await values(request))
                fields = await rate.admit(session, asked, route=_route_of(request))
            except Refusal as refusal:
                return web.json_response(
                    {"detail": refusal.detail}, status=refusal.status, headers=refusal.headers
                )
            response = await handler(*args, **kwargs)
            if not response.prepared:
                response.headers.update(fields)
            return response

        return limited

    return decorate


def _request_of(args: tuple[object, ...]) -> web.Request:
    """The request of a handler: it gets it, or, in a view, has it."""
    for each in args:
        if isinstance(each, web.Request):
            return each
        if isinstance(each, web.View):
            return each.request
    raise TypeError(
        "locked() decorates handlers: coroutine functions of a web.Request, and methods of a web.View"
    )


def _route_of(request: web.Request) -> str:
    """The method and the template of the path: its values are not for the log."""
    resource = request.match_info.route.resource
    return f"{request.method} {request.path if resource is None else resource.canonical}"


def session_of_request(request: web.Request) -> Session:
    """The session of the application that serves this request."""
    session = request.config_dict.get(SESSION)
    if session is None:
        raise RuntimeError(
            "this application has no aiolocks session: app.cleanup_ctx.append(session_ctx('redis://…'))"
        )
    return session


def _filled(template: NameTemplate, request: web.Request) -> str:
    return filled(template, _values(template, request))


def _values(template: NameTemplate, request: web.Request, *, but: tuple[str, ...] = ()) -> dict[str, str]:
    values: dict[str, str] = {}
    for field in template.fields:
        if field in but:
            continue
        # The path comes first: nobody can name another lock by adding a query to it.
        value = request.match_info.get(field)
        if value is None:
            value = request.query.get(field)
        if value is None:
            log.warning(
                "name %r: neither path nor query of %s has %r", template.text, visible(request.path), field
            )
            raise Refusal(400, f"The query parameter {field!r} is missing.")
        values[field] = value
    return values


async def _gone(request: web.Request) -> None:
    while (transport := request.transport) is not None:
        if transport.is_closing():
            return
        await asyncio.sleep(_LOOK_EVERY)
