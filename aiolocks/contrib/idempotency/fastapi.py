"""Idempotency keys for the routes of a FastAPI router.

```python
app = FastAPI(lifespan=session_lifespan("redis://localhost:6379"))
payments = APIRouter(route_class=idempotent_route(scope=user_id, required=True))


@payments.post("/payments")
async def pay(payment: Payment) -> Receipt:
    ...
```

A route class, and not a dependency: a dependency can neither see the answer of the handler nor give another
one in its place.
"""

# Annotations are objects in this module: FastAPI looks at them.

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Annotated, Any, Final, Unpack
from weakref import WeakKeyDictionary

from ..._extras import install

try:
    from fastapi import Depends, Request, Response
    from fastapi.routing import APIRoute
    from starlette.routing import get_name
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("fastapi", "starlette"):
        raise
    raise ModuleNotFoundError(
        f"aiolocks.contrib.idempotency.fastapi needs FastAPI: {install('fastapi')}", name=error.name
    ) from error

from ...lock.sources import Client, source_of
from .._fastapi_rates import Telling
from ..fastapi import current_session
from ._asgi import App, Body, Message, Scope, Send
from ._endpoints import asked_alone, marking
from ._middleware import Protected
from ._policy import Options, Policy, asker, check_scope
from ._problems import CONTENT_TYPE

__all__ = ["idempotent_route"]


def __dir__() -> list[str]:
    """The public names alone."""
    return [*__all__]


_ASKED: Final = "aiolocks.idempotency.asked"


def idempotent_route(
    *,
    scope: Callable[..., str | Awaitable[str | None] | None],
    client: Client | None = None,
    **options: Unpack[Options],
) -> type[APIRoute]:
    """Makes a route class for a router: its routes run each request with an `Idempotency-Key` once.

    The OpenAPI document shows the header, and the answers 400, 409, 413 and 422.

    `scope` and the `dependencies` of the route, its routers and its application run for each request with a
    key, also for a repetition. If a dependency refuses the request, its refusal is the answer. Put checks of
    permissions there. Dependencies that are parameters of the handler run once, with the handler. `Locked`
    and `Limited` hold nothing while a repetition is answered, unless one of the `dependencies` takes their
    lease as a parameter. `RateLimited` counts a repetition, whose answer has the fields of its own limits. If
    a dependency checks what the handler changes, such as that an order is unpaid, make it a parameter;
    otherwise it refuses the repetition.

    Only answers of the handler are kept. A refusal by a dependency, or of an invalid request, is not kept.

    Args:
        scope: A dependency that returns who asks, as a str. It is a function of the `Request`, or of
            parameters, as a handler has them, such as `Annotated[User, Depends(current_user)]`. None means
            that the user is unknown, and the answer is 400; see `IdempotencyMiddleware`.
        client: A client, or a `Session`, of the server that keeps the answers. You close it. Default: the
            session of `session_lifespan`; in tests, that of `app.dependency_overrides[current_session]`.
        **options: The options of `IdempotencyMiddleware`.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """
    check_scope(scope)
    policy = Policy.of(options)
    asking = _Asking(scope, None if client is None else source_of(client))

    class IdempotentRoute(APIRoute):
        """A route whose requests with a key are done once."""

        def __init__(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
            methods: set[str] = {method.upper() for method in given.get("methods") or ("GET",)}
            if methods & set(policy.methods):
                given["openapi_extra"] = _with_ours(given.get("openapi_extra"), policy)
            given["name"] = given.get("name") or get_name(endpoint)
            given["dependencies"] = asked_alone(given.get("dependencies") or ())
            super().__init__(path, marking(endpoint), **given)
            # Also for an application without `session_lifespan`: a repetition has limits of its own.
            self._protected = Telling(Protected(super().handle, policy, asking, marked=True))

        async def handle(self, scope: Any, receive: Any, send: Any) -> None:
            """Called by the router."""
            await self._protected(scope, receive, send)

    return IdempotentRoute


class _Asking:
    """Solves the dependency that says who asks, as FastAPI does for a route of its own."""

    def __init__(self, scope: Callable[..., Any], source: Any) -> None:
        self._scope = scope
        self._source = source
        self._apps: WeakKeyDictionary[Any, dict[str, App]] = WeakKeyDictionary()

    async def __call__(self, scope: Scope, body: Body, send: Send) -> tuple[Any, str] | None:
        app = scope["app"]
        # FastAPI takes from the path the parameters that the path of the route has.
        path = "/" + "/".join(f"{{{name}}}" for name in scope.get("path_params", ()))
        known = self._apps.setdefault(app, {})
        solving = known.get(path)
        if solving is None:
            route = APIRoute(path, self._endpoint(), dependency_overrides_provider=app)
            solving = known[path] = route.app
        solved: dict[str, Any] = {**scope, "state": {**scope.get("state", {})}}
        messages: list[Message] = []

        async def collect(message: MutableMapping[str, Any]) -> None:
            messages.append(message)

        await solving(solved, body.channel(), collect)
        if body.error is not None:  # which FastAPI has made another answer of
            raise body.error
        if _ASKED in solved:
            session, who = solved[_ASKED]
            return session, asker(who)
        for message in messages:  # an exception of the dependency, as its handler has it: 401, 403, 422
            await send(message)
        return None

    def _endpoint(self) -> Callable[..., Any]:
        async def given() -> Any:
            return self._source

        async def endpoint(
            request: Request,
            session: Annotated[Any, Depends(current_session if self._source is None else given)],
            who: Annotated[Any, Depends(self._scope)],
        ) -> Response:
            request.scope[_ASKED] = session, who
            return Response(status_code=204)

        return endpoint


def _with_ours(extra: dict[str, Any] | None, policy: Policy) -> dict[str, Any]:
    """The extra fields that FastAPI adds to the operation: the header and its answers."""
    problem = {
        "content": {
            CONTENT_TYPE: {
                "schema": {
                    "type": "object",
                    "properties": {
                        "type": {"type": "string"},
                        "title": {"type": "string"},
                        "status": {"type": "integer"},
                        "detail": {"type": "string"},
                        "reason": {"type": "string"},
                    },
                }
            }
        }
    }
    retry = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    answers = {
        "400": {
            "description": f"The {policy.header} is missing or malformed, or nobody knows who asks",
            **problem,
        },
        "409": {
            "description": "The first request with this key is running, or its answer is not known",
            "headers": retry,
            **problem,
        },
        "413": {"description": "The request is too long", **problem},
        "422": {
            "description": "The key was used for another request, or the request is not valid",
            **problem,
        },
    }
    parameter = {
        "name": policy.header,
        "in": "header",
        "required": policy.required,
        "schema": {"type": "string"},
        "description": "A string of your own, such as a UUID: new for each new request, and the same when "
        "the request is sent again.",
    }
    given = dict(extra or {})
    parameters = given.get("parameters", ())
    # Where a router is included, some versions of FastAPI make the route again with what it has by now.
    given["parameters"] = [*parameters, *(() if parameter in parameters else (parameter,))]
    given["responses"] = {**answers, **given.get("responses", {})}
    return given
