"""A note on an exception of the user, which is raised on whatever comes of the note."""

from __future__ import annotations

from .events import log


def note(error: BaseException, text: str) -> None:
    """Adds a note to the exception; to the log where the exception takes none.

    Its class may forbid that any attribute is set, as a frozen dataclass does, or have an `add_note` of its
    own that raises: what that raises must not take the place of the exception.
    """
    try:
        error.add_note(text)
    except Exception as refused:  # noqa: BLE001 - it is the user's code
        log.warning("%s (a note that %s does not take: %r)", text, type(error).__name__, refused)
