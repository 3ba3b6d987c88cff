"""Rate limits in FastAPI: a dependency that admits a request, or answers 429."""

# Annotations are objects here, for FastAPI looks at them.

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, final
from weakref import WeakKeyDictionary

from fastapi import Depends, HTTPException, Response, params
from starlette.requests import HTTPConnection, Request

from .. import Session
from ..lock.options import Seconds
from ._fastapi_hold import route_of
from ._fastapi_session import current_session
from ._parameters import Field, fields_of
from ._rates import CLIENT, KEY, TOO_MANY, Rate
from ._refusing import Conflict, Refusal

_OWN: Final = (CLIENT, KEY)


@final
class RateLimited(params.Depends):
    """A dependency that admits a number of requests in a number of seconds, and answers 429 to the others.

    ```python
    @app.get("/search", dependencies=[RateLimited("search:{client}", 100, per=60)])
    async def search() -> str:
        ...

    @app.get("/reports", dependencies=[RateLimited("reports:{key}", 5, per=60, key=current_user_id)])
    async def reports() -> str:
        ...
    ```

    A request above the limit is answered 429 with `Retry-After`. Each answer has the header fields
    `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-10. If Redis does not answer,
    the answer is 503. See `aiolocks.RateLimit` for the number of requests that a window admits.

    Args:
        name: A template. `{client}` is `request.client.host`. Behind a proxy this is the address of the
            proxy, unless the server trusts the proxy, as with uvicorn's `--forwarded-allow-ips`. `{key}` is
            the result of `key`. Other fields are path parameters, or query parameters of the handler.
        limit: Requests that are admitted in each `per`, in the long run.
        per: Seconds, 1 ms to ten years.
        burst: Requests that are admitted at once after a rest. Default: `limit`.
        key: A dependency that returns who asks, such as the id of a user. It is a function of the `Request`,
            or of parameters, as a handler has them. Give it if the name has the field `{key}`, and only then.
        blocking_timeout: Seconds that a request may wait for its turn; 0 for none; None for as long as it
            takes. Default 0: a request above the limit is answered at once.
        status: Status of the answer to a request above the limit: 423, 409, 429 or 503. Default 429 (Too Many
            Requests).
        detail: Text of this answer.

    Raises:
        TypeError, ValueError: An argument is wrong. From a request: the name has the field `{client}`, and
            the request has no client address, as over a unix socket.
    """

    def __init__(
        self,
        name: str,
        limit: int,
        *,
        per: Seconds,
        burst: int | None = None,
        key: Callable[..., Any] | None = None,
        blocking_timeout: Seconds | None = 0.0,
        status: Conflict = 429,
        detail: str = TOO_MANY,
    ) -> None:
        if key is not None and not callable(key):
            raise TypeError(f"key must be a function that returns who asks, not {type(key).__name__}")
        rate = Rate(
            "RateLimited",
            name,
            limit,
            per=per,
            burst=burst,
            blocking_timeout=blocking_timeout,
            status=status,
            detail=detail,
            has_key=key is not None,
        )
        super().__init__(dependency=Admit(rate, key), use_cache=False)


@final
class Admit:
    """The callable that FastAPI calls."""

    def __init__(self, rate: Rate, key: Callable[..., Any] | None) -> None:
        self._rate = rate
        # By handler and parameters of the path: it may serve several routes.
        self._fields: WeakKeyDictionary[Callable[..., Any], dict[frozenset[str], list[Field]]]
        self._fields = WeakKeyDictionary()
        wanted: dict[str, Any] = {
            "connection": HTTPConnection,
            "response": Response,
            "session": Annotated[Session, Depends(current_session)],
        }
        if key is not None:
            wanted["key"] = Annotated[Any, Depends(key)]
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
                for parameter, annotation in wanted.items()
            ]
        )

    async def __call__(
        self, *, connection: HTTPConnection, response: Response, session: Session, key: Any = None
    ) -> None:
        if not isinstance(connection, Request):
            raise TypeError(
                "RateLimited serves HTTP routes; in a websocket's, ask RateLimit(session, name, limit, per)"
            )
        try:
            name = self._rate.name(self._values(connection, key))
            response.headers.update(await self._rate.admit(session, name, route=route_of(connection)))
        except Refusal as refusal:
            raise HTTPException(refusal.status, refusal.detail, refusal.headers) from refusal

    def check(self, endpoint: Callable[..., Any], in_path: Iterable[str]) -> None:
        """Returns if a route gives all fields of the name; `in_path` are the parameters of its path.

        Raises:
            ConfigurationError: It does not.
        """
        fields_of(self._rate.template, endpoint, in_path, but=_OWN)

    def _values(self, request: Request, key: Any) -> dict[str, str]:
        rate, endpoint = self._rate, request.scope["endpoint"]
        known, in_path = self._fields.setdefault(endpoint, {}), frozenset(request.path_params)
        fields = known.get(in_path)
        if fields is None:
            fields = known[in_path] = fields_of(rate.template, endpoint, in_path, but=_OWN)
        values = {field.name: field.text(request) for field in fields}
        if CLIENT in rate.template.fields:
            values[CLIENT] = rate.client(None if request.client is None else request.client.host)
        if KEY in rate.template.fields:
            values[KEY] = rate.key(key)
        return values

    def __repr__(self) -> str:
        return f"<RateLimited {self._rate!r}>"
