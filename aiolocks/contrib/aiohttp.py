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
from weakref import WeakKeyDictionary

from .._extras import install

try:
    from aiohttp import web
except ModuleNotFoundError as error:
    if error.name != "aiohttp":
        raise
    raise ModuleNotFoundError(
        f"aiolocks.contrib.aiohttp needs aiohttp: {install('aiohttp')}", name=error.name
    ) from error

from .. import Session
from .._visible import visible
from ..errors import ConfigurationError, LockLostError
from ..kinds.lock import Lock
from ..lock.engine import SessionOptions
from ..lock.lease import Lease
from ..lock.naming import NameTemplate
from ..lock.options import LockOptions, Seconds, explains, seconds
from ..lock.sources import Client, Source
from ._background import Work, beside, checked
from ._erring import ANSWERED, Answers
from ._handling import handler_begins
from ._holding import Kind, Recipe, holding, log, opened
from ._rates import CLIENT, KEY, POLICY, TOO_MANY, Counted, Rate, distinct
from ._refusing import DETAIL, HEALTHY, UNHEALTHY, Conflict, Conflicting, Refusal, RetryAfter, filled, named
from ._sigterm import closed_after_sigterm

__all__ = ["LEASE", "SESSION", "error_middleware", "health", "locked", "rate_limited", "session_ctx"]


def __dir__() -> list[str]:
    """The public names alone."""
    return [*__all__]


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

# By the writer of the answer, which the copies share that middlewares make of a request.
_counted: Final[WeakKeyDictionary[object, Counted]] = WeakKeyDictionary()

_RATES: Final = "_aiolocks_rates"
"""The attribute of a handler with its limits."""

_LOOK_EVERY: Final = 0.1
"""Seconds between two looks at whether the client is there: aiohttp tells only if it is to cancel."""


def session_ctx(
    client: Client | Source,
    *,
    background: Iterable[Work] = (),
    close: bool | None = None,
    close_after_sigterm: Seconds | None = None,
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
        background: Async functions that run beside the application. Each takes one parameter, the session, or
            none: `[sweep, nightly.run, partial(leadership.run, main)]`. They start when this context is
            entered, in its `contextvars`.
            Before it ends, they are cancelled and awaited. If a function returns, it is not called again, and
            the log says so at `INFO`. If it raises, even a `BaseException`, the error is logged with its
            traceback, and the function is called again after a pause: 0 to 1 s at random, doubled after each
            further error, up to 60 s. After 60 s of work, the pause is 0 to 1 s again. `SystemExit` and
            `KeyboardInterrupt` end the program.
        close: True also closes a client or `Session` that you gave. None, the default, and False do not.
        close_after_sigterm: Seconds from `SIGTERM` until the session is closed, whatever runs: bodies are
            cancelled, and their locks are released. Give less than the time after which your server kills the
            process; some servers never cancel a handler. The handler of the signal that was there is called,
            too; without one, `SIGTERM` ends the process at once, as before. Outside of the main thread, as in
            a test client, it has no effect, and the log says so at `INFO`. If the process goes on, each later
            use of the session is a `SessionClosedError`. Default None: not at all.
        **session_options: Options of the `Session`, such as `prefix`. Not together with a `Session`.

    Raises:
        TypeError, ValueError: `close_after_sigterm` is wrong.
        TypeError: `background` has something else than such functions. When the application starts: `client`
            is none of these, or options were given together with a `Session`.
        ConfigurationError: When the application starts: a route has `health` as its handler, where `health()`
            makes it.
    """
    works = checked(background)
    after = None if close_after_sigterm is None else seconds("close_after_sigterm", close_after_sigterm)

    async def context(app: web.Application) -> AsyncGenerator[None, None]:
        for route in app.router.routes():
            if inspect.unwrap(route.handler) is health:
                raise ConfigurationError(
                    f"the handler of {route.resource!r} is the function health, which makes the handler: "
                    "write health()"
                )
        if not app.on_response_prepare.frozen:  # of a subapplication
            app.on_response_prepare.append(_tell_of_limits)
        async with (
            opened(client, session_options, close=close) as session,
            closed_after_sigterm(session, after),
        ):
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
them, with the route, under `aiolocks.requests`: at `WARNING` for 503, at `INFO` for other answers. If an
answer has already begun, the connection is closed, as after any error.
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
    below the decorator that makes the route. To stream while the lock is held, write to a
    `web.StreamResponse` in the handler: a body that is an async generator is sent after the handler returned.

    If the lock is not acquired in time, the answer is 423, or the `status` you chose, with `Retry-After`. If
    Redis does not answer, it is 503. If the lease is lost, the handler is cancelled, and the answer is 500,
    or the answer of `error_middleware`; if an answer has begun, the connection is closed. Answers are JSON,
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
            request, begun = _request_of(args, "locked"), False
            try:
                found = name_of(request)
                if not isinstance(found, str) and inspect.isawaitable(found):
                    found = await found
                session, gone = session_of_request(request), functools.partial(_gone, request)
                async with holding(session, named(found), recipe, gone, route=_route_of(request)) as held:
                    request[LEASE], begun = held.lease, True
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


@explains("rate_limited()", "RateLimit")
def rate_limited(
    name: Name,
    limit: int,
    *,
    per: Seconds,
    burst: int | None = None,
    key: Callable[[web.Request], object] | None = None,
    blocking_timeout: Seconds | None = 0.0,
    status: Conflict = 429,
    detail: str = TOO_MANY,
    policy: str = POLICY,
) -> Callable[
    [Callable[P, Awaitable[web.StreamResponse]]], Callable[P, Coroutine[Any, Any, web.StreamResponse]]
]:
    """Decorates a handler: a number of requests in a number of seconds is admitted, and the rest get 429.

    ```python
    @routes.get("/search")
    @rate_limited("search:{client}", 100, per=60)
    async def search(request: web.Request) -> web.Response:
        ...
    ```

    A request above the limit is answered 429 with `Retry-After`. Each answer to a request that was counted
    has the header fields `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-10: lists
    with an item for each limit of the handler. `q` is `burst`, `w` the whole seconds in which an empty bucket
    fills, `r` the requests that would be admitted at once, `t` the seconds until the bucket is full or, of a
    limit that has refused, until it would admit the request. If only a subapplication has `session_ctx`,
    answers that its handlers prepare, and answers of middlewares, do not have the fields.

    If Redis does not answer, the answer is 503. See `aiolocks.RateLimit` for the number of requests that a
    window admits. Put the decorator below the decorator that makes the route.

    Args:
        name: A template, or a function of the request, `async` or not, that returns the name. `{client}` is
            `request.remote`. Behind a proxy this is the address of the proxy, unless a middleware such as
            one of aiohttp-remotes replaces it. `{key}` is the result of `key`. Another field is a path
            parameter or, if the path has none of that name, a query parameter. The name stands in `aiolocks
            ls`, in the dashboard and in logs: make it of an id, or of a hash of a secret such as an API key.
            Limits of one handler have names of their own.
        limit: Requests that are admitted in each `per`, in the long run.
        per: Seconds, 1 ms to ten years.
        burst: Requests that are admitted at once after a rest. Default: `limit`.
        key: A function of the request, `async` or not, that returns who asks, such as the id of a user. Give
            it if the name has the field `{key}`, and only then.
        blocking_timeout: Seconds that a request may wait for its turn; 0 for none; None for as long as it
            takes. Default 0: a request above the limit is answered at once. If the client hangs up while its
            request waits, the request gives up its place.
        status: Status of the answer to a request above the limit: 423, 409, 429 or 503. Default 429 (Too Many
            Requests).
        detail: Text of this answer.
        policy: The name of this limit in the header fields, of printable ASCII. Default: `"default"`. If
            limits of one handler have the same, the second is told as `"default-2"`.

    Raises:
        TypeError, ValueError: An argument is wrong. From a request: the name has the field `{client}`, and
            the request has no client address, as over a unix socket.
        ConfigurationError: The handler has a limit of the same name.
        RuntimeError: From a request: the application has no session.
    """
    rate = Rate(
        "rate_limited()",
        name,
        limit,
        per=per,
        burst=burst,
        blocking_timeout=blocking_timeout,
        status=status,
        detail=detail,
        policy=policy,
        key=key,
    )

    def decorate(
        handler: Callable[P, Awaitable[web.StreamResponse]],
    ) -> Callable[P, Coroutine[Any, Any, web.StreamResponse]]:
        if not inspect.iscoroutinefunction(handler):
            raise TypeError(
                "rate_limited() decorates a coroutine function, or the methods of a web.View, not "
                f"{handler!r}"
            )

        rates = (rate, *getattr(handler, _RATES, ()))
        distinct("rate_limited()", rates)

        @functools.wraps(handler)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> web.StreamResponse:
            request = _request_of(args, "rate_limited")
            counted = _counted.setdefault(request.writer, Counted(added=False))
            try:
                session, asked = session_of_request(request), await _limit_of(rate, key, request)
                gone = functools.partial(_gone, request) if rate.waits else None
                await rate.admit(session, asked, gone, counted, route=_route_of(request))
                response = await handler(*args, **kwargs)
            except Refusal as refusal:
                response = web.json_response(
                    {"detail": refusal.detail}, status=refusal.status, headers=refusal.headers
                )
            except web.HTTPException as answer:
                await _tell_of_limits(request, answer)
                raise
            if not response.prepared:
                await _tell_of_limits(request, response)
            return response

        setattr(limited, _RATES, rates)
        return limited

    return decorate


async def _limit_of(rate: Rate, key: Callable[[web.Request], object] | None, request: web.Request) -> str:
    """The name of the limit of this request."""
    if rate.template is None:
        given: Any = rate.name_given
        asked = given(request)
        return rate.found(await asked if inspect.isawaitable(asked) else asked)
    values = _values(rate.template, request, but=(CLIENT, KEY))
    if CLIENT in rate.fields:
        values[CLIENT] = rate.client(request.remote)
    if key is not None:
        who = key(request)
        values[KEY] = rate.key(await who if inspect.isawaitable(who) else who)
    return rate.name(values)


async def _tell_of_limits(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Adds the fields of the limits that have counted a request to its answer, which is about to be sent.

    It is a signal of the application, and sees each answer, also the answers of middlewares. In a
    subapplication, where `session_ctx` comes too late for a signal, only `rate_limited` calls it.
    """
    counted = _counted.get(request.writer)
    if counted is not None:
        response.headers.update(counted.fields)


def _request_of(args: tuple[object, ...], of: str) -> web.Request:
    """The request of a handler: it gets it, or, in a view, has it."""
    for each in args:
        if isinstance(each, web.Request):
            return each
        if isinstance(each, web.View):
            return each.request
    raise TypeError(
        f"{of}() decorates handlers: coroutine functions of a web.Request, and methods of a web.View"
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
        # The path comes first: a client cannot name another lock by adding a query to it.
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
