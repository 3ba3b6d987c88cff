"""The session of a FastAPI application, also in the applications that are mounted in it."""

# Annotations are objects here, for FastAPI looks at them.

from collections.abc import Iterable, Iterator
from typing import Any, Final

from fastapi import routing
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Host, Mount, Router

from .. import Session

STATE: Final = "aiolocks_session"
"""The name of the session in the state of an application."""


def session_of(app: Starlette) -> Session:
    """The session of an application, for code outside of a request, such as a task of its lifespan.

    The session is available from the beginning of the application's own `lifespan` until the end of it.

    Args:
        app: The application, or an application that is mounted in it.

    Raises:
        RuntimeError: The application has no session: its lifespan has not begun, or is not
            `session_lifespan`.
    """
    session: Session | None = getattr(app.state, STATE, None)
    if session is None:
        raise RuntimeError(
            "this application has no aiolocks session: make it with "
            "FastAPI(lifespan=session_lifespan('redis://…')), and see to it that its lifespan runs"
        )
    return session


async def current_session(connection: HTTPConnection) -> Session:
    """The application's session, as a dependency: `session: Annotated[Session, Depends(current_session)]`.

    `Locked`, `Limited` and `RateLimited` use this dependency, too. Tests can give them another session, with
    `app.dependency_overrides[current_session]`.

    Raises:
        RuntimeError: The application has no session.
    """
    return session_of(connection.app)


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
