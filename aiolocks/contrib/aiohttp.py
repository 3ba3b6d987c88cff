"""Locks in aiohttp: a decorator that holds a lock while a handler runs, and a session.

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
        "aiolocks.contrib.aiohttp needs aiohttp: pip install 'aiolocks[aiohttp]'", name=error.name
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
"""The key of the application's session: `app[SESSION]`, or `request.config_dict[SESSION]` in a handler.

The contexts in `cleanup_ctx` that come after `session_ctx` can use the session, until they have ended.
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
    """A context for `app.cleanup_ctx` that opens a session, and closes it after the last request.

    ```python
    app.cleanup_ctx.append(session_ctx("redis://localhost:6379", prefix="shop"))
    ```

    `locked` and `rate_limited` find the session, also in subapplications; `app[SESSION]` is the session. It
    connects at its first use, so an application starts while Redis is away.

    Args:
        client: A URL, a function that makes a client, a client, or a `Session`. A client made from a URL or
            by a function is closed at the end. A client or `Session` that you give stays open, unless
            `close=True`.
        background: Functions `async def f(session)` that run beside the application. They start when this
            context is entered. Before it ends, they are cancelled and awaited. If a function returns, it is
            not called again, and the log says so at `INFO`. If it raises, the error is logged with its
            traceback, and the function is called again after a pause: 0 to 1 s at random, doubled after each
            further error, up to 60 s. After 60 s of work, the pause is 0 to 1 s again.
        close: True also closes a client or `Session` that you gave. None, the default, and False do not.
        **session_options: Options of the `Session`, such as `prefix`. Not together with a `Session`.

    Raises:
        TypeError: `background` has something else than functions. When the application starts: `client` is
            none of these, or options were given together with a `Session`.
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
        """Answers errors of locks that come out of handlers; see `error_middleware`."""
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
"""A middleware that answers errors of locks that come out of handlers. Without it, each is answered 500.

```python
app = web.Application(middlewares=[error_middleware])
app = web.Application(middlewares=[error_middleware(status=409)])
```

| error | answer |
|---|---|
| `LockTimeoutError` | 423, or the `status` you chose (423, 409, 429 or 503), with `Retry-After: 1` |
| `DuplicateJobError`, `StaleFenceError` | 409 |
| `FingerprintError` | 422 |
| `BackendError`, `SessionClosedError`, `CombinerFullError` | 503 with `Retry-After: 1` |
| `LockLostError`, also of `locked` | 503 without it: something may have been done |
| any other error | 500 as before: it is a bug |

An `ExceptionGroup`, such as that of a `TaskGroup`, is answered if each error in it is in the table; the
lowest row counts. Answers are JSON, `{"detail": "…"}`. They do not name the lock or its holder. The log names
them, with the route, under `aiolocks.requests`: at `WARNING` for 503, at `INFO` for the others. If an answer
has already begun, the connection is closed, as after any error.
"""


def health(*, within: Seconds = 5.0) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A handler for a health probe: 200 if the event loop and the server answer in time, else 503.

    ```python
    app.router.add_get("/ready", health(within=2))
    ```

    The handler calls `Session.healthy` of the application's session. If the event loop does not run, the
    handler does not answer at all, and the probe fails by its own time-out.

    Args:
        within: Seconds that the server may take to answer, at least 1 ms. Give less than the time-out of the
            probe. Default 5 s.

    Raises:
        TypeError, ValueError: `within` is wrong.
        RuntimeError: From a request: the application has no session.
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
    """Decorates a handler: it runs while a lock is held. The lock is released when the handler returns.

    ```python
    @routes.post("/orders/{order_id}/ship")
    @locked("order:{order_id}", ttl=10)
    async def ship(request: web.Request) -> web.Response:
        request[LEASE].ensure_held()
        ...
    ```

    It decorates coroutine functions, methods that get the request, and the methods of a `web.View`. Put it
    below the decorator that makes the route.

    If the lock is not acquired in time, the answer is 423, or the `status` you chose, with `Retry-After`. If
    Redis does not answer, it is 503. If the lease is lost, the handler is cancelled, and the answer is 500,
    or that of `error_middleware`; if an answer has begun, the connection is closed. Answers are JSON,
    `{"detail": "…"}`. If the client disconnects while its request waits, the request leaves the queue. An
    error that the handler raises is never replaced.

    Args:
        name: A template such as `"order:{order_id}"`, or a function of the request, `async` or not, that
            returns the name. A field of a template is a path parameter or, if the path has none of that name,
            a query parameter. The value is the text in the URL, percent-encoded.
        kind: A class of locks, or a function that makes a lock from a session and a name: `lambda session,
            name: Semaphore(session, name, 3)`.
        blocking_timeout: Seconds to wait; 0 for a single try; None for as long as the client is connected.
            Default 5 s, because clients and proxies wait longer for an answer.
        status: Status of the answer if another request holds the lock: 423, 409, 429 or 503. Default 423
            (Locked).
        retry_after: `Retry-After` of this answer: seconds, or a function that gets the `LockTimeoutError` and
            returns seconds, or None for the default. Default: how long handlers of this process have held the
            lock, as the median of the last 15 times. These are the times of that name or, if there are none,
            of all names of the template. The default is at least 1 s, and at most the time that is left of
            the holder's lease. Without any measured time it is 1 s.
        detail: Text of this answer.
        cache: Seconds for which this process keeps the lease after a request, so that its next request for
            the same name sends nothing to Redis. For `Lock` only. Default 0: the lease is released at once.
        **options: Options of the lock: `ttl`, `auto_renew`, `max_hold`, `on_lost`, `grace`, `metadata`.

    Raises:
        TypeError, ValueError: An argument is wrong.
        RuntimeError: From a request: the application has no session.
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
    """Decorates a handler: a number of requests in a number of seconds is admitted, and the others get 429.

    ```python
    @routes.get("/search")
    @rate_limited("search:{client}", 100, per=60)
    async def search(request: web.Request) -> web.Response:
        ...
    ```

    A request above the limit is answered 429 with `Retry-After`. Each answer that has not begun has the
    header fields `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-10. If Redis does
    not answer, the answer is 503. See `aiolocks.RateLimit` for the number of requests that a window admits.
    Put the decorator below the decorator that makes the route.

    Args:
        name: A template. `{client}` is `request.remote`. Behind a proxy this is the address of the proxy,
            unless a middleware such as those of aiohttp-remotes replaces it. `{key}` is the result of `key`.
            Another field is a path parameter or, if the path has none of that name, a query parameter.
        limit: Requests that are admitted in each `per`, in the long run.
        per: Seconds, 1 ms to ten years.
        burst: Requests that are admitted at once after a rest. Default: `limit`.
        key: A function of the request, `async` or not, that returns who asks, such as the id of a user. Give
            it if the name has the field `{key}`, and only then.
        blocking_timeout: Seconds that a request may wait for its turn; 0 for none; None for as long as it
            takes. Default 0: a request above the limit is answered at once.
        status: Status of the answer to a request above the limit: 423, 409, 429 or 503. Default 429 (Too Many
            Requests).
        detail: Text of this answer.

    Raises:
        TypeError, ValueError: An argument is wrong. From a request: the name has the field `{client}`, and
            the request has no client address, as over a unix socket.
        RuntimeError: From a request: the application has no session.
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
