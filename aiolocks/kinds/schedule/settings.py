"""The settings of a schedule; checked."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, Final, final

from ...lock.clock import milliseconds
from ...lock.options import Options, lock_name, optional_seconds, seconds, whole_number
from .dues import Cron, Dues, Every, between, time_zone
from .plan import Policy
from .runs import Run
from .ticks import Tick, at

_MOST_REDONE: Final = 1000
_OVERLAPS: Final = ("skip", "queue", "allow")
_MISFIRES: Final = ("latest", "skip", "all")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One schedule.

    Attributes:
        at_most: Seconds after which a run is cancelled; None for no limit.
    """

    name: str
    dues: Dues
    policy: Policy
    zone: dt.tzinfo
    options: Options
    at_most: float | None

    @classmethod
    def checked(
        cls,
        name: object,
        *,
        cron: Any,
        every: Any,
        tz: object,
        overlap: Any,
        misfire: Any,
        redo: object,
        at_most: object,
        jitter: object,
        ttl: object,
        metadata: object,
    ) -> Settings:
        name = lock_name(name)
        if (cron is None) == (every is None):
            raise TypeError("Schedule takes either cron= or every=, such as cron='0 3 * * *' or every=60")
        zone = time_zone(tz)
        if overlap not in _OVERLAPS:
            raise ValueError(f"overlap must be one of {', '.join(map(repr, _OVERLAPS))}, not {overlap!r}")
        if misfire not in _MISFIRES:
            raise ValueError(f"misfire must be one of {', '.join(map(repr, _MISFIRES))}, not {misfire!r}")
        longest = optional_seconds("at_most", at_most, least=0.001)
        lease = seconds("ttl", ttl)
        return cls(
            name=name,
            dues=Every(every) if cron is None else Cron(cron, zone),
            policy=Policy(
                overlap=overlap,
                misfire=misfire,
                redo=whole_number("redo", redo, least=0, most=_MOST_REDONE),
                jitter=milliseconds(seconds("jitter", jitter)),
            ),
            zone=zone,
            options=Options.checked(
                ttl=lease,
                # A job that does not heed its cancellation keeps its lease no longer than one that died.
                max_hold=None if longest is None else longest + lease,
                metadata=metadata,
            ),
            at_most=longest,
        )

    def tick(self, run: Run) -> Tick:
        """The argument of the job."""
        reply = run.reply
        due = reply.now_us // 1000 if reply.due is None else reply.due
        return Tick(
            name=self.name,
            due=at(due, self.zone),
            fencing_token=run.lease.fencing_token,
            missed=0 if reply.before is None else between(self.dues, reply.before, due),
            attempt=reply.attempt,
            lease=run.lease,
        )
