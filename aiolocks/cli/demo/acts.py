"""The four acts: in each of them workers do something, and checks follow."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from time import monotonic
from typing import Final, cast

from redis.asyncio import Redis

from .worker import Worker

WORKERS: Final = 4
ROUNDS: Final = 50
EXPECTED: Final = WORKERS * ROUNDS
TTL: Final = 1.0  # seconds, of the holder that is killed or stopped
PATIENCE: Final = 60.0  # seconds after which the demo gives up
_KEEP: Final = 60  # seconds after which the keys are gone, should the demo not come to remove them
_STAY: Final = 0.4  # seconds of a hold before something happens

Hold = tuple[float, float, int]
"""Begin, end and fencing token of a hold. Of a killed holder it is from the request to the lease's end."""


@dataclass(slots=True)
class Act:
    """One act: the things that it uses, and its checks, each with its text and whether it passed."""

    title: str
    redis: Redis
    prefix: str
    workers: Sequence[Worker]
    say: Callable[[str], None]
    began: float = field(default_factory=monotonic)
    checks: list[dict[str, object]] = field(default_factory=list[dict[str, object]])

    def log(self, at: float, text: str) -> None:
        """Tells what happened at a time."""
        self.say(f"   {at - self.began:6.3f} s  {text}")

    def check(self, text: str, passed: bool, seen: str) -> None:  # noqa: FBT001 - it stands beside its text
        """Notes a condition, and what was seen instead if it does not hold."""
        self.checks.append({"text": text if passed else f"{text} - but {seen}", "passed": passed})

    def check_holds(self, holds: Sequence[Hold]) -> None:
        """The promises of a lock, for any history of its holds."""
        pairs = list(pairwise(sorted(holds)))
        early = sum(entered < left for (_, left, _), (entered, _, _) in pairs)
        self.check("no two held the lock at the same time", not early, f"{early} entered too early")
        falls = sum(token <= earlier for (*_, earlier), (*_, token) in pairs)
        self.check("each fencing token is larger than the one before", not falls, f"{falls} are not")


async def count(act: Act, *, lock: bool) -> None:
    """Workers read a counter and write it again: without a lock they overwrite each other's updates."""
    key = f"{act.prefix}:counter"
    await act.redis.set(key, 0, ex=_KEEP)
    for worker in act.workers:
        worker.write(part="count", key=key, rounds=ROUNDS, lock=lock)
    done = [(worker.number, await worker.until("done")) for worker in act.workers]
    counter = int(cast("bytes", await act.redis.get(key)))
    holds = sorted((*hold, number) for number, told in done for hold in told["holds"])
    for entered, _, token, value, number in holds[:5]:
        under = f", with fencing token {token}" * lock
        act.log(entered, f"worker {number} reads {value} and writes {value + 1}{under}")
    lost = EXPECTED - counter
    act.log(monotonic(), f"the counter says {counter}: {lost} updates were lost")
    if lock:
        act.check(f"with the lock, the counter is exactly {EXPECTED}", not lost, f"it is {counter}")
        act.check_holds([(entered, left, token) for entered, left, token, *_ in holds])
    else:
        act.check("without a lock, updates are lost", 0 < counter < EXPECTED, f"the counter is {counter}")


async def take_over(act: Act, *, late: bool) -> None:
    """A holder is killed, or stopped and late, while another worker waits for the end of its lease."""
    (holder, heir), name = (act.workers[:2], "report") if late else (act.workers[2:], "job")
    holder.write(part="hold", name=name, value="first", ttl=TTL, seconds=PATIENCE, late=late)
    held = await holder.until("holds")
    act.log(held["entered"], f"worker {holder.number} holds {name!r}, with fencing token {held['token']}")
    await act.redis.expire(f"{act.prefix}:fencedregister:{{{name}}}", _KEEP)  # it has no ttl of its own
    heir.write(part="hold", name=name, value="second", ttl=PATIENCE, seconds=_STAY, late=False)
    act.log((await heir.until("waits"))["at"], f"worker {heir.number} waits for it")
    await asyncio.sleep(_STAY)

    stopped, way = monotonic(), signal.SIGSTOP if late else signal.SIGKILL
    holder.signal(way)
    act.log(stopped, f"worker {holder.number} gets {way.name}; its ttl is {TTL:g} s")
    took = await heir.until("holds")
    act.log(took["entered"], f"worker {heir.number} holds {name!r}, with fencing token {took['token']}")
    left = (await heir.until("done"))["at"]
    act.log(left, f"worker {heir.number} leaves")
    after = took["entered"] - stopped
    # The server's wall clock and our monotonic clock may drift apart by 10 ms within one ttl.
    lease = (held["asked"], held["asked"] + TTL - 0.01, held["token"])
    act.check_holds([lease, (took["entered"], left, took["token"])])
    # A loaded machine may take a second for what takes milliseconds.
    act.check(f"the next one had it within the ttl of {TTL:g} s", after <= TTL + 1, f"it took {after:.3f} s")
    if late:
        await _write_late(act, holder)


async def _write_late(act: Act, holder: Worker) -> None:
    """A holder that was stopped cannot know that time has passed: the store has to refuse its write."""
    act.log(monotonic(), f"worker {holder.number} gets SIGCONT, and writes 'late' with its old token")
    holder.signal(signal.SIGCONT)
    holder.write()
    end = await holder.until("done")
    lost, refusal, value = end["lost"], end["refusal"], end["value"]
    act.log(end["at"], f"worker {holder.number} is cancelled: {lost}")
    act.log(end["at"], f"the store says {value!r}: {refusal}")
    act.check("the store refused the late write", bool(refusal) and value == "second", f"it says {value!r}")
    act.check("the late holder's body was cancelled, with LockLostError", bool(lost), "it was not")


ACTS: Final[Sequence[tuple[str, Callable[[Act], Awaitable[None]]]]] = (
    (f"Without a lock: {WORKERS} processes raise a counter, {ROUNDS} times each", partial(count, lock=False)),
    ("With Lock: the same, one after another", partial(count, lock=True)),
    (f"A holder is killed with SIGKILL; its ttl is {TTL:g} s", partial(take_over, late=False)),
    (f"A holder is stopped past its ttl of {TTL:g} s, and writes late", partial(take_over, late=True)),
)
