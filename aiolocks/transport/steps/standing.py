"""What a request says of its asker and of the waiters of the asker's session, as a set of bits."""

from __future__ import annotations

import functools
from typing import Final

SEATED: Final = 1
"""This session has asked before, and may stand in the queue, which it leaves when it gets in."""
IN_TURN: Final = 2
"""Only if no waiter of another session stands in the queue before this one."""
PASSING: Final = 4
"""The asker was woken. If it is refused, or leaves room, the script must wake the next in the queue."""
OWING: Final = 32
"""This session released without waking a waiter: if this request is refused, the script wakes the first."""
STAYING: Final = 8
"""Other tasks of this session wait for the same lock: the place of the session is kept for them."""
WAITING: Final = 16
"""If it cannot get in, it will wait: the refusal seats it, and hangs its bell."""
TOLD: Final = 64
"""If it cannot get in, it is told the holders."""
BEHIND: Final = 128
"""Other waiters of this session go first: it does not get in, and takes a seat."""
BRIEF: Final = 256
"""It waits for the answer of a session that keeps the lock, and no longer."""


@functools.cache
def leave_letters(*, ring: bool, leave: bool) -> str:
    """For the scripts of a release: `r` to wake the next, `l` to leave the queue with its bell."""
    return ("r" if ring else "") + ("l" if leave else "")


@functools.cache
def letters(standing: int) -> str:
    """The same for the scripts, and `l` for a waiter that must leave the queue with its bell."""
    leaving = standing & (SEATED | STAYING) == SEATED
    said = [
        (SEATED, "q"),
        (IN_TURN, "t"),
        (PASSING, "p"),
        (OWING, "o"),
        (STAYING, "s"),
        (WAITING, "w"),
        (TOLD, "h"),
        (BEHIND, "b"),
        (BRIEF, "e"),
    ]
    return "".join(letter for bit, letter in said if standing & bit) + ("l" if leaving else "")
