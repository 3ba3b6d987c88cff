"""The routes that an application serves, and the applications that are mounted in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fastapi import routing
from starlette.applications import Starlette
from starlette.routing import Host, Mount, Router


def routes_of(app: Starlette | Router) -> Iterable[Any]:
    """Its routes, also those of the routers that it includes."""
    # Newer versions include routers as they are, and tell here what their routes amount to.
    return getattr(routing, "iter_route_contexts", iter)(app.routes)


def with_mounted(app: Starlette) -> Iterator[Starlette]:
    """The application, and all that are mounted in it: below a path or a host, and behind middlewares."""
    seen: list[object] = []
    ahead: list[Any] = [app]
    while ahead:
        found = ahead.pop()
        if any(found is each for each in seen):
            continue
        seen.append(found)
        if isinstance(found, Starlette):
            yield found
        if isinstance(found, (Starlette, Router)):
            routes = (getattr(each, "original_route", each) for each in routes_of(found))
            ahead += [each.app for each in routes if isinstance(each, (Mount, Host))]
        elif hasattr(found, "app"):  # a middleware around one
            ahead.append(found.app)
