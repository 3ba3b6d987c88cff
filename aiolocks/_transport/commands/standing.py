"""How who asks stands to others who wait, as a set of bits: it is said with each request."""

from __future__ import annotations

import functools
from typing import Final

SEATED: Final = 1
"""This session has asked before, and may stand in the queue, which it leaves when it gets in."""
IN_TURN: Final = 2
"""Only if nobody stands there before this session."""
PASSING: Final = 4
"""It was told that it may be free: what it cannot use, or not alone, it tells the next in the queue of."""
OWING: Final = 32
"""Somebody here has let go of something, and has told nobody: if it cannot use that, it tells the first."""
STAYING: Final = 8
"""Others wait in this session for the same thing: its place is kept for them."""
WAITING: Final = 16
"""If it cannot get in, it will wait: the refusal seats it, and hangs its bell."""
TOLD: Final = 64
"""If it cannot get in, it is told the holders."""
BEHIND: Final = 128
"""Others of this session go first: it does not get in, and takes a seat."""


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
    ]
    return "".join(letter for bit, letter in said if standing & bit) + ("l" if leaving else "")
