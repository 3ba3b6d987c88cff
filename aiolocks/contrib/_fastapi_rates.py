"""Rate limits in FastAPI: a dependency that admits a request, or answers 429.

A dependency can write on the answer that FastAPI makes of what a handler returns, and on no other: neither on
a `Response` of the handler, nor on the answer to an error, as of a later dependency, nor on that of a
middleware. So the fields are added outside of the application's middlewares, when an answer begins.
"""

# Annotations are objects in this module: FastAPI looks at them.

import inspect
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Annotated, Any, Final, final

from fastapi import Depends, HTTPException, Response, params
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request

from .. import Session
from ..lock.options import Seconds, explains
from ._fastapi_hold import gone_from, route_of
from ._fastapi_session import current_session
from ._parameters import Fields
from ._rates import CLIENT, FIELDS, KEY, POLICY, TOO_MANY, Counted, Rate
from ._refusing import Conflict, Refusal

_OWN: Final = (CLIENT, KEY)
_COUNTED: Final = "aiolocks.counted"
"""In the scope of a request: its `Counted`."""
_ON_THE_WIRE: Final = tuple(name.lower().encode() for name in FIELDS)

_Message = MutableMapping[str, Any]
_App = Callable[[Any, Any, Any], Awaitable[None]]


def tells_of_limits(app: Starlette) -> None:
    """Adds the fields of the limits to all answers of this application; more than once as once."""
    if app.middleware_stack is not None:
        app.middleware_stack = Telling.around(app.middleware_stack)
        return
    # A lifespan that is entered by hand, as in tests, begins before the middlewares are put together.
    build: Callable[[], _App] = app.build_middleware_stack
    app.build_middleware_stack = lambda: Telling.around(build())  # type: ignore[method-assign]


@final
class Telling:
    """An application whose answers have the fields of the limits that have counted the request."""

    def __init__(self, app: _App) -> None:
        self._app = app

    @classmethod
    def around(cls, app: _App) -> "Telling":
        return app if isinstance(app, cls) else cls(app)

    async def __call__(
        self,
        scope: _Message,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http" or _COUNTED in scope:
            await self._app(scope, receive, send)
            return
        # Middlewares copy the scope, and this object is in each copy.
        counted = scope[_COUNTED] = Counted(added=True)

        async def telling(message: _Message) -> None:
            fields = counted.fields
            if fields and message["type"] == "http.response.start":
                kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in _ON_THE_WIRE]
                ours = zip(_ON_THE_WIRE, (value.encode("ascii") for value in fields.values()), strict=True)
                message = {**message, "headers": [*kept, *ours]}
            await send(message)

        await self._app(scope, receive, telling)


@final
class RateLimited(params.Depends):
    """A dependency that admits a number of requests in a number of seconds, and answers 429 to the rest.

    ```python
    @app.get("/reports", dependencies=[RateLimited("reports:{key}", 5, per=60, key=current_customer_id)])
    async def reports() -> str:
        ...

    @app.get("/search", dependencies=[RateLimited("search:{client}", 100, per=60)])
    async def search() -> str:
        ...
    ```

    A request above the limit is answered 429 with `Retry-After`. Each answer to a request that was counted
    has the header fields `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-10,
    whoever makes the answer: lists with an item for each limit of the route. `q` is `burst`, `w` the whole
    seconds in which an empty bucket fills, `r` the requests that would be admitted at once, `t` the seconds
    until the bucket is full or, of a limit that has refused, until it would admit the request. In an
    application without `session_lifespan`, as in a test that overrides `current_session`, only answers that
    FastAPI makes of returned values, and 429, have them.

    If Redis does not answer, the answer is 503. See `aiolocks.RateLimit` for the number of requests that a
    window admits.

    Args:
        name: A template, or a dependency that returns the name. `{client}` is `request.client.host`. Behind
            a proxy this is the address of the proxy, unless the server trusts the proxy, as with uvicorn's
            `--forwarded-allow-ips`. `{key}` is the result of `key`. Other fields are path parameters, or
            query parameters of the handler. A dependency is a function of the `Request`, or of parameters, as
            a handler has them. The name stands in `aiolocks ls`, in the dashboard and in logs: make it of an
            id, or of a hash of a secret such as an API key. Limits of one route have names of their own.
        limit: Requests that are admitted in each `per`, in the long run.
        per: Seconds, 1 ms to ten years.
        burst: Requests that are admitted at once after a rest. Default: `limit`.
        key: A dependency that returns who asks, such as the id of a user. It is a function of the `Request`,
            or of parameters, as a handler has them. Give it if the name has the field `{key}`, and only then.
        blocking_timeout: Seconds that a request may wait for its turn; 0 for none; None for as long as it
            takes. Default 0: a request above the limit is answered at once. If the client hangs up while its
            request waits, the request gives up its place.
        status: Status of the answer to a request above the limit: 423, 409, 429 or 503. Default 429 (Too Many
            Requests).
        detail: Text of this answer.
        policy: The name of this limit in the header fields, of printable ASCII. Default: `"default"`. If
            limits of one route have the same, the second is told as `"default-2"`.

    Raises:
        TypeError, ValueError: An argument is wrong. From a request: the name has the field `{client}`, and
            the request has no client address, as over a unix socket.
    """

    @explains("RateLimited", "RateLimit")
    def __init__(
        self,
        name: str | Callable[..., str | Awaitable[str]],
        limit: int,
        *,
        per: Seconds,
        burst: int | None = None,
        key: Callable[..., Any] | None = None,
        blocking_timeout: Seconds | None = 0.0,
        status: Conflict = 429,
        detail: str = TOO_MANY,
        policy: str = POLICY,
    ) -> None:
        rate = Rate(
            "RateLimited",
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
        super().__init__(dependency=Admit(rate, key), use_cache=False)


@final
class Admit:
    """The callable that FastAPI calls."""

    def __init__(self, rate: Rate, key: Callable[..., Any] | None) -> None:
        self.rate = rate
        self._fields = None if rate.template is None else Fields(rate.template, but=_OWN)
        wanted: dict[str, Any] = {
            "connection": HTTPConnection,
            "response": Response,
            "session": Annotated[Session, Depends(current_session)],
        }
        if rate.template is None:
            wanted["asked"] = Annotated[Any, Depends(rate.name_given)]  # type: ignore[arg-type]
        if key is not None:
            wanted["key"] = Annotated[Any, Depends(key)]
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
                for parameter, annotation in wanted.items()
            ]
        )

    async def __call__(
        self,
        *,
        connection: HTTPConnection,
        response: Response,
        session: Session,
        key: Any = None,
        asked: Any = None,
    ) -> None:
        if not isinstance(connection, Request):
            raise TypeError(
                "RateLimited serves HTTP routes; in a websocket's, ask RateLimit(session, name, limit, per)"
            )
        rate = self.rate
        counted: Counted = connection.scope.setdefault(_COUNTED, Counted(added=False))
        try:
            name = rate.found(asked) if rate.template is None else rate.name(self._values(connection, key))
            gone = await gone_from(connection, name) if rate.waits else None
            await rate.admit(session, name, gone, counted, route=route_of(connection))
        except Refusal as refusal:
            fields = {} if counted.added else counted.fields
            raise HTTPException(refusal.status, refusal.detail, fields | refusal.headers) from refusal
        if not counted.added:
            response.headers.update(counted.fields)

    @property
    def statuses(self) -> tuple[int, ...]:
        """The statuses of its refusals."""
        return self.rate.statuses

    def check(self, endpoint: Callable[..., Any], in_path: Iterable[str]) -> None:
        """Returns if a route gives all fields of the name; `in_path` are the parameters of its path.

        Raises:
            ConfigurationError: It does not.
        """
        if self._fields is not None:
            self._fields.check(endpoint, in_path)

    def _values(self, request: Request, key: Any) -> dict[str, str]:
        rate = self.rate
        assert self._fields is not None
        values = {field.name: field.text(request) for field in self._fields.of(request)}
        if CLIENT in rate.fields:
            values[CLIENT] = rate.client(None if request.client is None else request.client.host)
        if KEY in rate.fields:
            values[KEY] = rate.key(key)
        return values

    def __repr__(self) -> str:
        return f"<RateLimited {self.rate!r}>"
