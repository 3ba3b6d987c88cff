"""A holder lets go of its lease: the release, and what is done where it comes too late."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from ..errors import BackendError, LockError
from .notes import note
from .releasing import Releasing
from .shield import LONGEST_DELAY, wait_shielded
from .states import RELEASED

if TYPE_CHECKING:
    import asyncio

    from .possession import Possession


@final
class LettingGo:
    """The end of one lease by its holder, who may ask for it several times.

    Invariants:
    - one release is sent, and none for a lease that has ended before; nothing of the lease is sent after it;
    - a lease that was lost is taken back, at most once: the server may still have it, or have it again.
    """

    __slots__ = ("_possession", "_releasing", "_taken_back")

    def __init__(self, possession: Possession) -> None:
        self._possession = possession
        self._releasing: Releasing | None = None
        self._taken_back = False

    async def done(self, *, cancelled_by: asyncio.CancelledError | None) -> LockError | None:
        """Releases, and says what stood in the way. Goes on by itself after a caller that is cancelled."""
        possession, releasing = self._possession, self._releasing
        if releasing is None and possession.overdue:
            possession.lose(possession.why_over())
        if possession.end is not None:
            if possession.lost:
                self._take_back()
            return None if possession.end is RELEASED else possession.not_owned()
        if releasing is None:
            # The order matters: no renewal may be sent after the release, and the try of the next waiter here
            # must be sent right after it.
            possession.leave_watch()
            engine, gate, claim = possession.engine, possession.gate, possession.claim
            ring, ordered = gate.letting_go(claim), engine.ordered
            releasing = self._releasing = Releasing(
                engine,
                claim.end(ring=ring),
                until=possession.term.deadline,
                on_end=self._let_gone,
                corked=ordered and gate.awaited,
            )
            if ordered:
                gate.vacated(claim)
        await wait_shielded(releasing.ended, cancelled_by=cancelled_by)
        if releasing.fault is not None:
            error = releasing.fault.error
            if isinstance(error, BackendError):
                told = f"aiolocks: {possession.label} {possession.name!r} was not released; its ttl frees it"
                if told not in getattr(error, "__notes__", ()):  # it may be asked again
                    note(error, told)
            return error
        return possession.not_owned() if possession.lost else None

    def _let_gone(self, releasing: Releasing) -> None:
        if self._possession.end is None:
            self._end_with(releasing)
        self._possession.gate.let_go(releasing.rung, overtaken=releasing.overtaken)

    def _end_with(self, releasing: Releasing) -> None:
        possession = self._possession
        if releasing.fault is not None:
            possession.lose("its release was not confirmed in time; the ttl frees it")
            self._take_back()
        elif releasing.thief and possession.lost_to(releasing.thief):
            pass
        elif releasing.freed:
            possession.released()
        else:
            possession.lose("the server no longer had it as the holder when it was released")

    def _take_back(self) -> None:
        """The server may still have a lease that was lost by the local clock, or with the session.

        Or may have again: a server that hangs may execute the last renewal when it goes on.
        """
        if not self._taken_back:
            self._taken_back = True
            engine = self._possession.engine
            engine.take_back(self._possession.claim.end(), LONGEST_DELAY, told=engine.wake_own)
