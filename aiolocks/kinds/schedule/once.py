"""One run, claimed by a process that comes for nothing else: a tick, or one out of turn."""

from __future__ import annotations

import dataclasses
from typing import Final

from ...lock.context import Context
from ...lock.options import Options
from .clock import ask_time, server_clock
from .dues import Dues
from .plan import LATE, Plan, Policy
from .runs import Claims, Run
from .settings import Settings
from .steps import NotClaimed

ONCE: Final = Policy(overlap="skip", misfire="latest", redo=0, jitter=0)
_AGAIN: Final = ("early", "busy")
_LOOK_AGAIN: Final = 1.0
"""Seconds: a queued tick looks that often whether the other run has ended."""


def nearest(dues: Dues, now: int) -> int:
    """The tick that a machine means that asks now by its own clock: the latest one, or one that is near.

    Clocks of machines may differ by less than half of the gap, and no tick is meant by one machine and missed
    by all. A tick that is due in more than a minute is not waited for.
    """
    due, following = dues.latest(now), dues.after(now)
    return following if following - now < min((following - due) // 2, LATE) else due


async def claim_nearest(
    engine: Context, name: str, dues: Dues, options: Options, policy: Policy = ONCE
) -> Run | NotClaimed:
    """Waits until the tick is due by the server's clock, claims it, and is refused if another machine has it.

    Of the policy, `overlap` and `redo` count; a tick that was missed is not made up for.

    Raises:
        BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
        SessionClosedError: The session is closed.

    Cancelled at any point, a claim that the server may have granted is taken back.
    """
    plan = Plan(name, dues, dataclasses.replace(ONCE, overlap=policy.overlap, redo=policy.redo))
    with server_clock(engine, name) as clock:
        claims = Claims(engine, name, options, clock)
        await ask_time(engine, name, clock)
        due = nearest(dues, clock.now())
        ask = plan.ask(due)
        # The first tick of a schedule is run too: no process is there before a tick to begin the register.
        ask = ask._replace(flags=ask.flags + "f", in_time=min(ask.gap // 2, LATE))
        while True:
            await engine.sleep(max(0, due - clock.now()) / 1000)
            found = await claims.claim(ask)
            if isinstance(found, Run) or (isinstance(found, NotClaimed) and found.why not in _AGAIN):
                return found
            if isinstance(found, NotClaimed) and found.why == "busy":
                if policy.overlap != "queue":
                    return found
                await engine.sleep(min(_LOOK_AGAIN, (found.ends_in or 0) / 1000 + 0.002))


async def trigger(engine: Context, settings: Settings) -> Run | None:
    """A run out of turn, or None while another one goes on that is not to be waited for."""
    plan = Plan(settings.name, settings.dues, settings.policy)
    with server_clock(engine, settings.name) as clock:
        claims = Claims(engine, settings.name, settings.options, clock, settings.zone)
        while True:
            found = await claims.claim(plan.out_of_turn(clock.now()))
            if isinstance(found, Run):
                return found
            if isinstance(found, NotClaimed) and found.why == "skipped":
                return None
            ends_in = found.ends_in if isinstance(found, NotClaimed) else 0
            await engine.sleep(min(_LOOK_AGAIN, (ends_in or 0) / 1000 + 0.002))
