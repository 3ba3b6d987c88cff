"""The session of a FastAPI application, and where it is found."""

# Annotations are objects here, for FastAPI looks at them.

from typing import Final

from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from .._core.session import Session

STATE: Final = "aiolocks_session"
"""The name of the session in the state of an application."""


def session_of(app: Starlette) -> Session:
    """The session of an application, for code outside of a request, such as a task of its lifespan.

    It is there as soon as the application's own `lifespan` begins, and until that has ended.

    Args:
        app: The application, or one that is mounted in it.

    Raises:
        RuntimeError: It has none: its lifespan has not begun, or is another one.
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

    `Locked` has it from here too: with `app.dependency_overrides[current_session]` tests give it another.

    Raises:
        RuntimeError: There is none.
    """
    return session_of(connection.app)
