"""A text that does harm where it is shown as it is, and a machine with such a name."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest import mock

from aiolocks.transport import whereabouts

EVIL: Final = "evil\x1b]0;owned\x07\r\nfake: line\u202egnp\x9b31m\\"
"""It sets the title of a window, begins a line, turns the direction of writing, and sets a colour."""
SHOWN: Final = r"evil\x1b]0;owned\x07\r\nfake: line\u202egnp\x9b31m\\"
"""The same, escaped."""


@contextmanager
def evil_machine() -> Iterator[None]:
    """Sessions that begin in this scope are of a machine with that name."""
    try:
        with mock.patch.object(socket, "gethostname", return_value=EVIL):
            whereabouts.cache_clear()
            yield
    finally:
        whereabouts.cache_clear()
