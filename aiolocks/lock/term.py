"""The deadline of a lease and the time of its next renewal: arithmetic, and nothing else."""

from __future__ import annotations

from typing import Final, final

from .clock import dependable

NEVER: Final = float("inf")

_RENEWALS_PER_TTL: Final = 3
_GRID: Final = 32
"""Renewals fall on a grid of ttl / 32, so that those of many leases leave in one write."""
_MARGIN: Final = 0.05
"""Seconds before its end, at least, at which the event loop must have run."""
_SHARE: Final = 0.05
"""The same as a share of the ttl."""
_TOGETHER: Final = 0.01
"""Seconds in which first questions are gathered, so that they leave in one write."""
_RETRY: Final = 0.02
"""Seconds before a failed renewal is tried again; doubled each time, up to ttl / 12."""
_SUSPENDED: Final = 0.05
"""Seconds between the loop's clock and the one that goes on, after which the machine counts as suspended."""
_PATIENCE: Final = 1.0
"""Seconds after which a renewal that was not answered leaves the lease in doubt; less for a short ttl."""


@final
class Term:
    """The times of one lease, all of the loop's clock.

    Invariant: `deadline` is never later than the end of the lease on the server, if both clocks run alike.

    Args:
        sent: When the granted request was sent: right before that, not when its reply came.
        ttl: Seconds that each renewal asks for.
        max_hold: Seconds after which it ends whatever renewals could do.
        grace: Seconds before its end at which its body is to stop.
        ahead: Seconds by which the loop's clock is behind the one that goes on while the machine is
            suspended, as of then.

    Attributes:
        doubted: Its last renewal has had no answer yet, or an error for an answer.
        stopping: The body was told to stop.
        span: Seconds that were asked for last.
    """

    _retries = 0
    at_limit = False  # the server's ttl reaches to the end of max_hold
    doubted = False
    stopping = False
    deadline: float
    renewal_due: float

    def __init__(
        self,
        sent: float,
        *,
        ttl: float,
        max_hold: float | None,
        auto_renew: bool,
        grace: float = 0.0,
        ahead: float = 0.0,
    ) -> None:
        self._auto_renew = auto_renew
        self.grace = grace
        self.ttl = ttl
        if max_hold is None:
            self._end = NEVER
            self.span = ttl
        else:
            self._end = sent + max_hold
            self.span = self.ttl_at(sent)
        self.confirmed(sent, ahead=ahead)

    @property
    def limited(self) -> bool:
        """Whether the ttl to ask for depends on when."""
        return self._end < NEVER

    @property
    def lasting(self) -> bool:
        """Whether it does not end by itself."""
        return self._auto_renew and not self.limited

    @property
    def renews(self) -> bool:
        """Whether a renewal moves its end."""
        return self._auto_renew and not self.at_limit

    def moment(self, now: float, steady: float) -> float:
        """Loop time, had the loop's clock gone on while the machine was suspended.

        Args:
            now: The time of the loop's clock.
            steady: The time of the other one.
        """
        steady -= self.ahead
        return steady if steady > now else now  # noqa: FURB136 - asked often, and `max` takes longer

    def ask_by(self, moment: float) -> None:
        """The server must be asked by then: with others of about the same time."""
        self.renewal_due = min(self.renewal_due, (moment // _TOGETHER + 1) * _TOGETHER)

    def ask_at(self, moment: float) -> None:
        """The server must be asked then."""
        self.renewal_due = moment

    @property
    def next_end(self) -> float:
        """When the body is to stop, as things stand; once it was told so, when the lease ends."""
        return self.deadline if self.stopping else self.deadline - self.grace

    @property
    def due(self) -> float:
        """When there is something to do next."""
        end = self.deadline if self.stopping else self.deadline - self.grace
        return end if end < self.renewal_due else self.renewal_due  # noqa: FURB136 - asked often

    @property
    def margin(self) -> float:
        """Seconds before the end at which the event loop must have run."""
        return min(max(_MARGIN, _SHARE * self.span), self.span / 4)

    def ttl_at(self, sent: float) -> float:
        """The ttl to ask for at that time: never past `max_hold`."""
        if self._end == NEVER:
            return self.ttl
        return max(0.001, min(self.ttl, self._end - sent))

    def asks(self, now: float) -> float:
        """The ttl that a request of that time asks for."""
        self.span = ttl = self.ttl_at(now)
        return ttl

    def next_look(self, asked: float) -> float:
        """When to look again at a renewal that was sent then, unless it is answered before."""
        return min(asked + min(_PATIENCE, self.ttl / 6), self.next_end)

    def confirmed(self, sent: float, *, ahead: float) -> None:
        """The server has it for the ttl that was asked for last, counted from before the request was sent.

        Args:
            sent: Loop time right before that.
            ahead: As for a new one.
        """
        if self.doubted or self._retries:
            self.doubted = False
            self._retries = 0
        self.ahead = ahead
        end = sent + dependable(self.span)
        if self._end == NEVER:
            self.deadline = end
        else:
            self.deadline = min(end, self._end)
            self.at_limit = sent + self.span >= self._end - 0.001
        if self.at_limit or not self._auto_renew:
            self.renewal_due = NEVER
        else:
            grid = self.ttl / _GRID
            self.renewal_due = (sent + self.ttl / _RENEWALS_PER_TTL) // grid * grid

    def confirmed_with(self, other: Term) -> None:
        """As `confirmed`, at the moment of the other one, of the same ttl; neither has a `max_hold`."""
        self.doubted = False
        self.ahead = other.ahead
        self._retries = 0
        self.deadline = other.deadline
        self.renewal_due = other.renewal_due
        self.span = other.span

    def retry(self, now: float) -> None:
        """A renewal failed: soon again, at first."""
        self.renewal_due = now + min(_RETRY * 2**self._retries, self.ttl / 12)
        self._retries = min(self._retries + 1, 16)

    def change(self, now: float, ttl: float) -> None:
        """Another ttl is asked for: until that is confirmed, the shorter of both times counts."""
        self.ttl = ttl
        self.span = self.ttl_at(now)
        self.deadline = min(self.deadline, now + dependable(self.span))
        self.at_limit = self.at_limit and now + ttl >= self._end - 0.001
        if self._auto_renew and not self.at_limit:
            self.renewal_due = min(self.renewal_due, now + ttl / _RENEWALS_PER_TTL)

    def move(self, seconds: float) -> None:
        """The loop's clock did not count that many seconds."""
        self.ahead += seconds
        self._end -= seconds
        self.deadline -= seconds
        self.renewal_due -= seconds

    def why_grace(self, left: float) -> str:
        """The reason why the body must stop, with `left` seconds left."""
        if self.at_limit:
            why = "max_hold passes"
        elif self._auto_renew:
            why = "its last renewal was not confirmed, and its ttl passes"
        else:
            why = "auto_renew is off, and its ttl passes"
        return f"`grace` began: {why} in {left:.3f} s"

    def why_over(self, *, stalled: float, suspended: float = 0.0) -> str:
        """The reason when the deadline has passed.

        Args:
            stalled: Seconds in which the event loop did not run.
            suspended: Seconds in which the machine did not; it takes some to count.
        """
        if self.at_limit:
            return "max_hold has passed"
        if not self._auto_renew:
            return "its ttl passed, and auto_renew is off"
        if suspended > _SUSPENDED:
            return f"the machine was suspended for {suspended:.1f} s"
        if stalled:
            return f"the event loop did not run for {stalled:.1f} s or more"
        return "its ttl passed without a confirmed renewal"
