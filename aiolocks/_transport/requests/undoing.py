"""Requests that undo an earlier one, whether it was executed already, will be, or never is."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Final, TypeVar

from ..faults import Fault
from .calls import Call, Command, ignore

T = TypeVar("T")

_PAUSE_FIRST: Final = 0.02
_PAUSE_MAXIMUM: Final = 0.5
"""Seconds before an undo that the server has refused is sent again."""


def take_back(
    command: Command[T],
    *,
    send: Callable[..., None],
    loop: AbstractEventLoop,
    seconds: float,
    told: Callable[[T], None] = ignore,
    at_once: bool = True,
    make: Callable[[], Command[T]] | None = None,
) -> None:
    """Sends an undo, which stands in the lane of the request that it undoes. Synchronous: the last word.

    While that request may still be executed, the undo is kept until the server has answered it, however long
    that takes; otherwise for `seconds`, after which the key has expired. A server that refuses
    the undo for the moment (`READONLY`, `LOADING`, `BUSY`, `MISCONF`) is asked again within that time, unless
    the session is closed before.

    Args:
        command: Idempotent: it may be executed several times, also long after the request.
        send: Of the transport. Nothing else of the session is kept alive while the undo is under way.
        loop: Times the pauses.
        seconds: How long the undo is of use: the effect of the earlier request ends by itself then.
        told: Called with the server's answer.
        at_once: Writes it now; it may be the last thing that this loop does.
        make: Makes the command again for each time that it is written.
    """
    until = loop.time() + seconds
    pause = _PAUSE_FIRST

    def attempt() -> None:
        call = Call(command, told, failed, until=until, undoes=True, as_eval=True, make=make, on_late=told)
        send(call, at_once=at_once)

    def failed(fault: Fault) -> None:
        nonlocal pause
        refused_for_now = fault.transient and not fault.unknown
        if refused_for_now and loop.time() + pause < until:
            loop.call_later(pause, attempt)
            pause = min(2 * pause, _PAUSE_MAXIMUM)

    attempt()
