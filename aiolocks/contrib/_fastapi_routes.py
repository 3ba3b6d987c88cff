"""The routes of a FastAPI application when it starts: what cannot work is told, what may be refused is shown.

The OpenAPI document lists an answer only if its route has it among its `responses`. A dependency cannot add
one there: it does not know the routes that use it. So the lifespan does it, for an application and for all
that are mounted in it.
"""

# Annotations are objects in this module: FastAPI looks at them.

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from fastapi import routing
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Host, Mount, Router, compile_path

from ..errors import ConfigurationError
from ._fastapi_hold import Hold
from ._fastapi_rates import Admit, tells_of_limits
from ._rates import distinct
from ._refusing import in_openapi


class Mounted(NamedTuple):
    """An application, or a router without one, and the parameters of the paths that lead to it."""

    app: Starlette | Router
    in_path: frozenset[str]


def routes_of(app: Starlette | Router) -> Iterable[Any]:
    """Its routes, also the routes of the routers that it includes."""
    # Newer versions include routers as they are; this function of theirs gives the routes in effect.
    return getattr(routing, "iter_route_contexts", iter)(app.routes)


def mounted_in(app: Starlette) -> Iterator[Mounted]:
    """The application, and all that are mounted in it: below a path or a host, and behind middlewares.

    One that is mounted in several places comes once for each set of parameters.
    """
    seen: set[tuple[int, frozenset[str]]] = set()
    ahead: list[tuple[Any, frozenset[str]]] = [(app, frozenset())]
    while ahead:
        found, in_path = ahead.pop()
        if (id(found), in_path) in seen:
            continue
        seen.add((id(found), in_path))
        if isinstance(found, (Starlette, Router)):
            yield Mounted(found, in_path)
            ahead += [(each, in_path) for each in routes_of(found)]
            continue
        route = getattr(found, "original_route", found)
        if isinstance(route, Mount):
            ahead.append((route.app, in_path | set(compile_path(found.path)[2])))
        elif isinstance(route, Host):
            ahead.append((route.app, in_path | set(route.param_convertors)))
        elif not isinstance(route, BaseRoute) and hasattr(found, "app"):  # a middleware around one
            ahead.append((found.app, in_path))


def check_routes(app: Starlette, health: Callable[..., Any]) -> None:
    """Checks each route, and adds to its `responses` what `Locked`, `Limited` and `RateLimited` may answer.

    If a route has a `RateLimited`, all answers of the application have the fields of the limits.

    Raises:
        ConfigurationError: A name has a field that its route has not; two `RateLimited` of one route have one
            name; or `health` is a handler itself.
    """
    for found in mounted_in(app):
        for route in routes_of(found.app):
            endpoint, path = getattr(route, "endpoint", None), getattr(route, "path", None)
            if endpoint is None or path is None:
                continue
            if inspect.unwrap(_function(endpoint)) is health:
                raise ConfigurationError(
                    f"the handler of {path!r} is the function health, which makes the handler: write health()"
                )
            in_path = found.in_path | set(compile_path(path)[2])
            calls = [*_calls(getattr(route, "dependant", None))]
            for call in calls:
                if isinstance(call, (Hold, Admit)):
                    call.check(endpoint, in_path)
                    _show(route, call.statuses)
            if rates := [call.rate for call in calls if isinstance(call, Admit)]:
                distinct("RateLimited", rates)
                tells_of_limits(app)


def _function(endpoint: Any) -> Any:
    while isinstance(endpoint, functools.partial):
        endpoint = endpoint.func
    return endpoint


def _calls(dependant: Any) -> Iterator[Any]:
    """All dependencies of a route, of its routers, and of these dependencies."""
    for each in getattr(dependant, "dependencies", ()):
        yield getattr(each.call, "hold", each.call)  # that of `Depends(Locked(...))`
        yield from _calls(each)


def _show(route: Any, statuses: Iterable[int]) -> None:
    responses: dict[int | str, dict[str, Any]] | None = getattr(route, "responses", None)
    if responses is None:  # of a websocket
        return
    for status in statuses:
        if str(status) not in map(str, responses):
            responses[status] = in_openapi(status)
