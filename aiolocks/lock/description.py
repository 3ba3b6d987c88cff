"""The holder of a lease in words, as they stand on the server beside it."""

from __future__ import annotations

import asyncio
import json
from typing import Final, final

from ..transport import whereabouts

_quote: Final = json.encoder.encode_basestring_ascii


@final
class Description:
    """The metadata beside the leases of one session.

    Args:
        pid: The process of the session.
    """

    __slots__ = ("_like", "_loop", "_process", "_text")

    def __init__(self, loop: asyncio.AbstractEventLoop, pid: int) -> None:
        self._loop = loop
        self._process = whereabouts(pid)
        # The last one, and what it was made of: the many leases of a task have one text.
        self._text = ""
        self._like: tuple[str, str, str] | None = None

    def text(self, user: str, more: str = "") -> str:
        """As JSON: the running task, and what the user adds.

        `more` is further fields, each with a comma before it.
        """
        task = asyncio.current_task(self._loop)
        like = ("" if task is None else task.get_name(), user, more)
        if like != self._like:
            self._like = like
            self._text = f'{{{self._process},"task":{_quote(like[0])},"user":{user}{more}}}'
        return self._text
