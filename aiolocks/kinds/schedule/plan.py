"""The next tick to claim, and the time to claim it: all decisions, and no I/O.

Times are whole milliseconds since 1970 by the server's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, final

from .dues import Dues, delay
from .steps import Ask, Claimed, NotClaimed

Overlap = Literal["skip", "queue", "allow"]
Misfire = Literal["latest", "skip", "all"]

LATE: Final = 60_000
"""Up to that many milliseconds late, and no more than half a gap, a tick is not missed yet."""
_IN_TIME: Final = 1_000
"""The same where the register is gone: later than that, another process may have run it before."""
_LOOK_AGAIN: Final = 1_000
"""The run of another process is looked at that often where its end matters to this one, and 4 times a gap."""
_WEEK: Final = 7 * 24 * 3_600_000
_SET_BACK: Final = 60_000
"""A tick that was claimed so far in the future was claimed before the server's clock was set back."""
_FLAGS: Final[dict[Overlap, str]] = {"skip": "s", "queue": "q", "allow": ""}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The settings of a schedule; checked. Times are milliseconds."""

    overlap: Overlap
    misfire: Misfire
    redo: int
    jitter: int


@final
class Wanted(NamedTuple):
    """The next claim: of which tick, and not before when."""

    due: int
    at: int


@final
class Plan:
    """The next claim of one schedule in one process, by what the register said last.

    Invariants:
    - no tick is asked for before it is due, as far as this process knows the server's time;
    - with `misfire="all"` each tick is asked for by itself, in order; otherwise the latest that is due;
    - a tick that is known to be claimed is asked for again only to find out whether its run was lost.
    """

    __slots__ = ("_dues", "_known", "_name", "_not_before", "_passed", "_policy", "_watch_at")

    def __init__(self, name: str, dues: Dues, policy: Policy) -> None:
        self._name = name
        self._dues = dues
        self._policy = policy
        self._known: int | None = None  # the newest tick that is claimed, as far as this process knows
        self._passed: int | None = None  # up to this tick, no claim is of use any more
        self._not_before = 0  # another run is in the way until then
        self._watch_at: int | None = None  # when to see whether a run was lost

    def next(self, now: int) -> Wanted:
        """The claim to make next."""
        self._forget_future(now)
        floor = max((one for one in (self._known, self._passed) if one is not None), default=None)
        due = self._dues.latest(now)
        if floor is not None and (due <= floor or self._policy.misfire == "all"):
            due = self._dues.after(floor)
        at = max(due + self._delay(due), self._not_before)
        if self._watch_at is not None and self._watch_at < at and self._known is not None:
            return Wanted(self._known, self._watch_at)
        return Wanted(due, at)

    def _forget_future(self, now: int) -> None:
        if self._known is not None and self._known > now + _SET_BACK:
            self._known = None
        if self._passed is not None and self._passed > now + _SET_BACK:
            self._passed = None

    def _delay(self, due: int) -> int:
        if not self._policy.jitter:
            return 0
        return delay(self._name, due, self._dues.after(due) - due, self._policy.jitter)

    def ask(self, due: int) -> Ask:
        """The request to the register for this claim."""
        policy, following = self._policy, self._dues.after(due)
        gap, put_off = following - due, self._delay(due)
        late = put_off + min(gap // 2, LATE)
        return Ask(
            due,
            known=self._known,
            before=self._dues.latest(due - 1),
            flags=_FLAGS[policy.overlap] + ("w" if policy.misfire == "all" else ""),
            redo=policy.redo,
            gap=gap,
            lasting=self._lasting(due, following),
            latest=due + late if policy.misfire == "skip" else None,
            in_time=put_off + min(gap // 2, _IN_TIME),
            definition=self._dues.definition,
            again=following + self._delay(following),
        )

    def out_of_turn(self, now: int) -> Ask:
        """The same for a run that is no tick."""
        due, policy = self._dues.latest(now), self._policy
        lasting = self._lasting(due, self._dues.after(due))
        return Ask(
            None,
            flags=_FLAGS[policy.overlap],
            redo=policy.redo,
            lasting=lasting,
            definition=self._dues.definition,
        )

    def _lasting(self, due: int, following: int) -> int:
        """At least two gaps, and a week: as long as an outage may last, after which ticks count as missed."""
        return max(_WEEK, 2 * (self._dues.after(following) - due))

    # -- what came of it

    def claimed(self, reply: Claimed) -> None:
        """The claim has been granted."""
        self._watch_at, self._not_before = None, 0
        if reply.due is not None and (self._known is None or reply.due > self._known):
            self._known = reply.due

    def taken_back(self, reply: Claimed, now: int) -> None:
        """The tick has been granted, and was given back at once: the answer came too late."""
        self._known = reply.before
        self._not_before = now + 50

    def refused(self, wanted: int, reply: NotClaimed) -> None:
        """The register says why not."""
        now = reply.now_us // 1000
        self._watch_at = None
        if reply.claimed is not None:
            self._known = reply.claimed
        if reply.why == "late":
            self._passed = wanted
        gap = self._dues.after(wanted) - wanted
        again = None if reply.ends_in is None else now + min(_LOOK_AGAIN, gap // 4, reply.ends_in + 2)
        if reply.why == "busy":
            self._not_before = again if again is not None else now
        elif self._policy.redo and reply.why in ("taken", "skipped"):
            self._watch_at = again

    def run_ended(self) -> None:
        """A run of this process has ended, or was lost: none is known to be in the way."""
        self._not_before = 0
        if self._policy.redo:
            self._watch_at = 0
