"""The client that a session makes for itself, and closes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, final

from .._transport import check_client, open_clients


@final
class OwnClient:
    """It is made when it is first needed, and again for another event loop, or after it was closed.

    Args:
        source: A URL, or a function that makes a client.

    Raises:
        TypeError, ValueError: It is neither.
    """

    __slots__ = ("_beside", "_client", "_open")

    def __init__(self, source: str | Callable[[], Any]) -> None:
        self._client: Any = None
        self._beside: Sequence[Any] = ()
        if isinstance(source, str):
            self._open = functools.partial(open_clients, source)
            self.get()  # a URL that is wrong is told at once
        elif callable(source):
            self._open = functools.partial(_made, source)
        else:
            raise TypeError(f"give a URL, or a function that makes a client, not {type(source).__name__}")

    def get(self) -> Any:
        """The client of now."""
        if self._client is None:
            self._client, self._beside = self._open()
        return self._client

    def forget(self) -> tuple[Any, ...]:
        """The next client is a new one; what has to be closed of this one."""
        clients = () if self._client is None else (self._client, *self._beside)
        self._client, self._beside = None, ()
        return clients


def _made(make: Callable[[], Any]) -> tuple[Any, Sequence[Any]]:
    client = make()
    check_client(client)
    return client, ()
