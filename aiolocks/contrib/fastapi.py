"""Locks in FastAPI: a dependency that holds a lock while a handler runs, and a lifespan with a session.

```python
app = FastAPI(lifespan=session_lifespan("redis://localhost:6379"))


@app.post("/orders/{order_id}/ship")
async def ship(order_id: int, lease: Annotated[Lease, Locked("order:{order_id}", ttl=10)]) -> str:
    ...
```
"""

# Annotations are objects in this module: FastAPI looks at them.

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Final, Never, Unpack, final

from .._extras import install

try:
    from fastapi import Request, params
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, PlainTextResponse, Response
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("fastapi", "starlette"):
        raise
    raise ModuleNotFoundError(
        f"aiolocks.contrib.fastapi needs FastAPI: {install('fastapi')}", name=error.name
    ) from error

from ..kinds.lock import Lock
from ..lock.engine import SessionOptions
from ..lock.lease import Lease
from ..lock.naming import NameTemplate
from ..lock.options import LockOptions, Seconds, seconds
from ..lock.sources import Client, Source
from ._background import Work, beside, checked
from ._erring import ANSWERED, Answers
from ._fastapi_hold import Hold, route_of
from ._fastapi_limits import Limited
from ._fastapi_rates import RateLimited
from ._fastapi_routes import check_routes, mounted_in
from ._fastapi_session import STATE, current_session, session_of
from ._holding import Kind, Recipe, opened
from ._parameters import Fields
from ._refusing import DETAIL, HEALTHY, UNHEALTHY, Conflict, Conflicting, RetryAfter, filled, named
from ._sigterm import closed_after_sigterm

__all__ = [
    "Limited",
    "Locked",
    "RateLimited",
    "current_session",
    "health",
    "install_error_handlers",
    "session_lifespan",
    "session_of",
]


def __dir__() -> list[str]:
    """The public names alone."""
    return [*__all__]


Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def session_lifespan(
    client: Client | Source,
    *,
    lifespan: Lifespan | None = None,
    background: Iterable[Work] = (),
    close: bool | None = None,
    close_after_sigterm: Seconds | None = None,
    **session_options: Unpack[SessionOptions],
) -> Lifespan:
    """A lifespan that opens a session for the application, and closes it after the last request.

    ```python
    app = FastAPI(lifespan=session_lifespan("redis://localhost:6379", prefix="shop"))
    ```

    `Locked`, `Limited`, `RateLimited`, `current_session` and `session_of` find the session, also in mounted
    applications. The session connects at its first use, so an application starts while Redis is away.

    Args:
        client: A URL, a function that makes a client, a client, or a `Session`. A client made from a URL or
            by a function is closed at the end. A client or `Session` that you give stays open, unless
            `close=True`.
        lifespan: Your own lifespan. It begins after the session is opened, and ends before the session is
            closed. What it yields is passed on.
        background: Async functions that run beside the application. Each takes one parameter, the session, or
            none: `[sweep, nightly.run, partial(leadership.run, main)]`. They start after your `lifespan` has
            begun, in its context.
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
        ConfigurationError: When the application starts: the name of a `Locked` or a `RateLimited` has a field
            that its route does not have, also in a mounted application; two `RateLimited` of one route have
            the same name; or a route has `health` as its handler, where `health()` makes it.
    """
    works = checked(background)
    after = None if close_after_sigterm is None else seconds("close_after_sigterm", close_after_sigterm)

    @asynccontextmanager
    async def both(app: Starlette) -> AsyncGenerator[Any, None]:
        check_routes(app, health)
        async with (
            opened(client, session_options, close=close) as session,
            closed_after_sigterm(session, after),
        ):
            for each in mounted_in(app):
                if isinstance(each.app, Starlette):
                    setattr(each.app.state, STATE, session)
            async with nullcontext() if lifespan is None else lifespan(app) as state, beside(session, works):
                yield state

    return both


_OF_ALL: Final = "_aiolocks_of_all"
"""Attribute of a handler that was installed for all errors of locks together."""


def install_error_handlers(app: Starlette, *, status: Conflict = 423) -> None:
    """Answers errors of locks that come out of handlers. Without it, each of them is answered 500.

    ```python
    app = FastAPI(lifespan=session_lifespan("redis://localhost:6379"))
    install_error_handlers(app)
    ```

    | error | answer |
    |---|---|
    | `LockTimeoutError` | 423, or the `status` you chose, with `Retry-After: 1` |
    | `DuplicateJobError`, `StaleFenceError` | 409 |
    | `FingerprintError` | 422 |
    | `BackendError`, `SessionClosedError`, `CombinerFullError` | 503 with `Retry-After: 1` |
    | `LockLostError`, also of `Locked` and `Limited` | 503 without it: something may have been done |
    | any other error | 500 as before: it is a bug |

    An `ExceptionGroup`, such as that of a `TaskGroup`, is answered if each error in it is in the table; the
    lowest row counts. Answers are JSON, `{"detail": "…"}`. They do not name the lock or its holder. The log
    names them, with the route, under `aiolocks.requests`: at `WARNING` for 503, at `INFO` for other answers.
    If an answer has already begun, the connection is closed, as after any error.

    If your application has its own handler for one of these classes, that handler is called, whether it is
    added before or after. A mounted application has its own handlers: call this function for it, too. Of two
    calls for one application, the last one counts.

    Args:
        app: The application, of FastAPI or of Starlette.
        status: Status of the answer to `LockTimeoutError`: 423, 409, 429 or 503. Default 423 (Locked).

    Raises:
        TypeError, ValueError: An argument is wrong.
        RuntimeError: The application already serves requests, and would not call handlers that are added now.
    """
    given: object = app
    if not isinstance(given, Starlette):
        raise TypeError(f"app must be an application of FastAPI or Starlette, not {given!r}")
    if app.middleware_stack is not None:
        raise RuntimeError("install_error_handlers must be called before the application serves requests")
    answers = Answers(status)

    async def answer(request: Request, error: Exception) -> Response:
        if not isinstance(request, Request):  # pyright: ignore[reportUnnecessaryIsInstance] - a websocket
            raise error
        session = getattr(request.app.state, STATE, None)
        refusal = answers.to(error, session=session, route=route_of(request))
        if refusal is None:
            raise error
        return JSONResponse({"detail": refusal.detail}, refusal.status, refusal.headers)

    setattr(answer, _OF_ALL, True)
    handlers = app.exception_handlers
    for cls in ANSWERED:
        if cls not in handlers or hasattr(handlers[cls], _OF_ALL):
            handlers[cls] = answer


def health(*, within: Seconds = 5.0) -> Callable[[Request], Awaitable[PlainTextResponse]]:
    """An endpoint for a health probe: 200 if the event loop and the server answer in time, else 503.

    ```python
    app.get("/ready", include_in_schema=False)(health(within=2))
    ```

    The endpoint calls `Session.healthy` of the application's session. If the event loop does not run, the
    endpoint does not answer at all, and the probe fails by its own time-out.

    Args:
        within: Seconds that the server may take to answer, at least 1 ms. Give less than the time-out of the
            probe. Default 5 s.

    Raises:
        TypeError, ValueError: `within` is wrong.
        RuntimeError: From a request: the application has no session.
    """
    allowed = seconds("within", within, least=0.001)

    async def answer(request: Request) -> PlainTextResponse:
        healthy = await session_of(request.app).healthy(within=allowed)
        return PlainTextResponse(HEALTHY if healthy else UNHEALTHY, status_code=200 if healthy else 503)

    return answer


@final
class Locked(params.Depends):
    """A dependency that holds a lock while the handler of a request runs.

    ```python
    @app.post("/orders/{order_id}/ship")
    async def ship(order_id: int, lease: Annotated[Lease, Locked("order:{order_id}", ttl=10)]) -> str:
        lease.ensure_held()
        ...

    @app.post("/import", dependencies=[Locked("import", blocking_timeout=0, status=409)])
    async def start_import() -> None:
        ...
    ```

    The lock is released when the handler has returned, before the answer is sent. If the handler is a
    generator, whose items FastAPI streams, the lock is released when the generator has ended: by itself, by
    an error, or because the client hung up. `Depends(Locked(...))` holds it until the answer has been sent
    and background tasks are done, as FastAPI does with its own dependencies.

    If the lock is not acquired in time, the answer is 423, or the `status` you chose, with `Retry-After`. If
    Redis does not answer, it is 503. If the lease is lost, the handler is cancelled, and the answer is 500,
    or the answer of `install_error_handlers`; if a stream has begun, the connection is closed. If the client
    disconnects while its request waits, the request leaves the queue. An error that the handler raises is
    never replaced.

    Args:
        name: A template such as `"order:{order_id}"`, or a dependency that returns the name. The fields of a
            template are path parameters, or query parameters of the handler. They have the values that the
            handler gets, percent-encoded: equal values are one lock, however the client writes them. A
            dependency is a function of the `Request`, or of parameters, as a handler has them. Use an `async
            def`, because FastAPI runs other functions in a thread.
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
    """

    def __init__(
        self,
        name: str | Callable[..., str | Awaitable[str]],
        *,
        kind: Kind = Lock,
        blocking_timeout: Seconds | None = 5.0,
        status: Conflict = 423,
        retry_after: RetryAfter | None = None,
        detail: str = DETAIL,
        cache: Seconds = 0.0,
        **options: Unpack[LockOptions],
    ) -> None:
        recipe = Recipe(
            "Locked",
            kind=kind,
            blocking_timeout=blocking_timeout,
            conflict=Conflicting(status=status, retry_after=retry_after, detail=detail),
            options=dict(options),
            name=name,
            cache=cache,
        )
        super().__init__(dependency=_Hold(name, recipe), scope="function")
        # For FastAPI, which looks at what it may call, in `Depends(Locked(...))`: at these of the instance.
        object.__setattr__(self, "__signature__", inspect.signature(self.hold))
        object.__setattr__(self, "__call__", self.hold.__call__)

    @property
    def hold(self) -> "_Hold":
        """The function that FastAPI calls."""
        assert isinstance(self.dependency, _Hold)
        return self.dependency

    def __call__(self, *decorated: Never, **solved: Any) -> AsyncGenerator[Lease, None]:
        """For `Depends(Locked(...))`.

        Raises:
            TypeError: It is used as a decorator.
        """
        if decorated:
            raise TypeError(
                "Locked is a dependency of FastAPI and decorates nothing: write lease: Annotated[Lease, "
                "Locked(...)] for a parameter of the handler, or dependencies=[Locked(...)] in the route's "
                "decorator. A Lock decorates coroutine functions, and aiolocks.contrib.aiohttp.locked "
                "decorates the handlers of aiohttp"
            )
        return self.hold(until_sent=True, **solved)


@final
class _Hold(Hold):
    def __init__(self, name: object, recipe: Recipe) -> None:
        self._recipe = recipe
        self.template = NameTemplate(name, otherwise="pass a function") if isinstance(name, str) else None
        self._fields = None if self.template is None else Fields(self.template)
        if self.template is None and not callable(name):
            raise TypeError(f"name must be a str or a function, not {type(name).__name__}")
        super().__init__(
            "Locked serves HTTP routes; in a websocket's, write `async with Lock(session, name)`",
            **({"name": name} if self.template is None else {}),
        )

    def check(self, endpoint: Callable[..., Any], in_path: Iterable[str]) -> None:
        """Returns if a route gives all fields of the name; `in_path` are the parameters of its path.

        Raises:
            ConfigurationError: It does not.
        """
        if self._fields is not None:
            self._fields.check(endpoint, in_path)

    @property
    def statuses(self) -> tuple[int, ...]:
        """The statuses of its refusals."""
        return self._recipe.conflict.statuses

    def _wanted(self, request: Request, *asked: Any) -> tuple[str, Recipe]:
        if self.template is None or self._fields is None:
            return named(*asked), self._recipe
        values = {field.name: field.text(request) for field in self._fields.of(request)}
        return filled(self.template, values), self._recipe

    def __repr__(self) -> str:
        return f"<Locked {self.template!r} {self._recipe!r}>"
