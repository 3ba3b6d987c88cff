"""Finding and starting the command that is run under a lock."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ..exits import NOT_EXECUTABLE, NOT_FOUND, CommandError
from .child import Child

_VARIABLE: Final = "AIOLOCKS_FENCING_TOKEN"
NO_MORE: Final[Mapping[str, str]] = {}


def ensure_program(program: str) -> None:
    """A program that cannot be run takes no lock, which would then be kept from machines that have it."""
    if shutil.which(program) is None:
        if os.sep in program and Path(program).exists():
            raise CommandError(f"{program}: {os.strerror(errno.EACCES)}", NOT_EXECUTABLE)
        raise CommandError(f"{program}: command not found", NOT_FOUND)


def started(
    command: Sequence[str], fencing_token: int, mask: frozenset[int], more: Mapping[str, str] = NO_MORE
) -> Child:
    """The command, running, with the fencing token in its environment.

    Args:
        command: Program and arguments.
        fencing_token: That of the lease or term for which it runs.
        mask: The signals that it starts with blocked.
        more: Further variables.
    """
    try:
        return Child(command, os.environ | {_VARIABLE: str(fencing_token), **more}, mask)
    except (FileNotFoundError, ValueError):  # the latter if it is empty
        raise CommandError(f"{command[0]}: command not found", NOT_FOUND) from None
    except OSError as error:
        raise CommandError(f"{command[0]}: {error.strerror}", NOT_EXECUTABLE) from None
