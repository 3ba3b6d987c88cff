"""The session of a FastAPI application."""

# Annotations are objects in this module: FastAPI looks at them.

from typing import Final

from starlette.applications import Starlette
from starlette.requests import HTTPConnection

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
