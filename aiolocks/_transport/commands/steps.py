"""What the steps of all kinds have in common."""

from __future__ import annotations

from typing import Final, Protocol, cast

from ..calls import Argument, Command, Script
from .answers import BELL_TTL_MS, QUEUE_TTL_MS

_ARM: Final = Script("queue_arm")


class _Belled(Protocol):
    @property
    def bell(self) -> bytes: ...


class Steps:
    """The steps of one name in one session.

    Args:
        retention_ms: For how long a fence is kept after its last use; at least ten times the ttl of that.
    """

    __slots__ = ("_retention_ms",)

    def __init__(self, retention_ms: int) -> None:
        self._retention_ms = retention_ms

    @property
    def all_bells(self) -> tuple[bytes, ...]:
        """All of them, where it waits in several places at once."""
        return (cast("_Belled", self).bell,)

    @property
    def nests(self) -> bool:
        """Whether an owner may have several tokens."""
        return False

    def owner(self, token: str) -> str:
        """Whose token that is: what one owner has excludes nothing that the same owner wants."""
        return token

    def heir(self, old: str, fresh: str) -> str:
        """The token for who adopts from `old`, made of a fresh one; a new one where there is no old one."""
        return fresh

    def _retention(self, ttl_ms: int) -> int:
        least = 10 * ttl_ms
        return max(self._retention_ms, least)


def arming(bell: bytes, queues: tuple[bytes, ...], *, lane: str, seat: str = "") -> Command[int]:
    """Stands in these queues from now on, with a fresh bell: NEW, HUNG or RUNG, as the last one was.

    `seat` tells apart those who stand there with the same bell.
    """
    args: tuple[Argument, ...] = (BELL_TTL_MS, QUEUE_TTL_MS, seat, *queues)
    return Command(_ARM, (bell,), args, int, lane=lane, bell=bell)


def acknowledged(key: bytes, replicas: int) -> Command[int]:
    """How many replicas have what the connection to that key's server has written.

    Asked for so many, it is answered at once when there are, or else after 1 ms.
    """
    return Command(None, (key,), ("WAIT", replicas, 1), int)
