"""Combiners: what all processes of a schedule have left, run, and been answered."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Final

from aiolocks import (
    Batch,
    Combiner,
    CombinerFullError,
    LockLostError,
    RemoteCallError,
    ResultNotKeptError,
    Session,
)

from .excuses import Excused
from .schedule import Round

if TYPE_CHECKING:
    from .checkers import Referee

SLACK: Final = 0.02
"""Seconds for the work of loops."""


class NoSuccessError(Exception):
    """What a run raises."""


@dataclass(eq=False)
class Item:
    """One item; times of the world.

    Attributes:
        place: How many its process has left before.
        sure: When the server had it, as its caller was told.
        runs: Those that had it.
    """

    text: str
    who: str
    place: int
    asked: float
    waits: bool
    sure: float = inf
    gone: bool = False
    answered: bool = False
    dropped: bool = False
    runs: list[Running] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return any(run.ended < inf for run in self.runs)


@dataclass(eq=False)
class Running:
    """One run of a batch.

    Attributes:
        ended: When it ended for good: with results, or with an error that its callers get.
        over: When it ended in any way.
    """

    who: str
    number: int
    attempt: int
    token: int
    items: tuple[str, ...]
    began: float
    ended: float = inf
    over: float = inf


class Combined:
    """The ledger.

    Args:
        travel: Seconds in which a request of the slowest process was executed.
    """

    def __init__(self, referee: Referee, rng: random.Random, *, travel: float) -> None:
        self._referee = referee
        self._late = 3 * (travel + SLACK) + 0.1
        rng = random.Random(f"{rng.getstate()[1][:3]} combined")  # the draws of all others stay
        self._retry: int = rng.choice((0, 0, 1))
        self._window: float = rng.choice((0.0, 0.0, 0.0, 0.03))
        self._within: float | None = rng.choice((None, 0.06))
        self._most: int = rng.choice((1000, 1000, 2, 3))
        self._most_waiting: int = rng.choice((10_000, 10_000, 10_000, 3))
        self._keep: float = rng.choice((86400.0, 86400.0, 1.0))
        self._items: dict[str, Item] = {}
        self._places: dict[str, int] = {}
        self._runs: list[Running] = []
        self._here: dict[str, int] = {}  # how many rounds of a process go on
        self._dead: set[str] = set()
        self._emptied = False
        self._ahead = 0.0
        self.on_server: set[str] = set()
        """What the server has at the end."""

    def died(self, process: str) -> None:
        self._dead.add(process)
        for item in self._items.values():
            item.gone |= _process(item.who) == process
        for run in self._runs:
            if _process(run.who) == process:
                run.over = min(run.over, self._referee.now)

    def emptied(self) -> None:
        """A server has lost what it had: numbers begin again, and nothing is promised of what was left."""
        self._emptied = True

    def set_ahead(self, seconds: float) -> None:
        """A server's clock was set ahead: items are older for it."""
        self._ahead += seconds

    def _explained(self, since: float, who: str, *sorts: Excused) -> bool:
        referee = self._referee
        return any(referee.excuses.explain(sort, who, since, referee.now) for sort in sorts)

    # -- a round

    async def combine(self, session: Session, one: Round, ttl: float) -> None:
        """A task that leaves an item, and waits for its result or does not; or a worker."""
        process = _process(one.part)
        self._here[process] = self._here.get(process, 0) + 1
        combiner = Combiner(
            session,
            "x",
            ttl=ttl,
            window=self._window,
            within=self._within if self._window else None,
            most=self._most,
            most_waiting=self._most_waiting,
            retry=self._retry,
            keep=self._keep,
        )
        try:
            if one.doing == "drain":
                await self._drain(combiner, one)
            else:
                await self._leave(combiner, session, one)
        finally:
            self._here[process] -= 1

    async def _drain(self, combiner: Combiner, one: Round) -> None:
        with_end = asyncio.timeout(0.2 + one.hold)
        try:
            async with with_end:
                await combiner.drain(self._run_of(one))
        except TimeoutError:
            if not with_end.expired():
                raise

    async def _leave(self, combiner: Combiner, session: Session, one: Round) -> None:
        referee, process = self._referee, _process(one.part)
        place = self._places[process] = self._places.get(process, -1) + 1
        waits = one.doing != "leave"
        text = f"{one.part}#{place}"
        item = self._items[text] = Item(text, one.part, place, referee.now, waits)
        try:
            if not waits:
                left = await combiner.leave(text)
                item.sure = referee.now
                if not 1 <= left.pressure <= self._most_waiting:
                    referee.wrong(f"{one.part}: a pressure of {left.pressure}")
                return
            async with asyncio.timeout(one.timeout or None):
                await self._submit(combiner, session, one, item)
        except CombinerFullError as error:
            item.gone = True
            del self._items[text]
            if error.pressure < self._most_waiting:
                referee.wrong(f"{one.part} is refused, although {error.pressure} wait")
        except BaseException:
            item.gone = True
            raise

    async def _submit(self, combiner: Combiner, session: Session, one: Round, item: Item) -> None:
        referee = self._referee
        try:
            answer: Any = await combiner.submit(item.text, self._run_of(one))
        except (NoSuccessError, RemoteCallError, RuntimeError) as error:
            if "event loop" in str(
                error
            ):  # as of a run that blocks: processes were stopped, one after the other
                item.gone = True
                if not referee.excuses.explain_any(Excused.LEASE, 0.0, referee.now):
                    referee.wrong(f"{one.part}: {type(error).__name__}: {error}")
                return
            answer = str(error).rpartition(": ")[2].split()
        except (LockLostError, ResultNotKeptError) as error:
            item.gone = True
            if isinstance(error, ResultNotKeptError) and not item.done:
                referee.wrong(f"{one.part} is told that its item was done, and no run with it has ended")
            elif "was dropped" in str(error):
                self._look_at_dropped(item, one.part)
            elif not self._explained(item.asked, one.part, Excused.RESULT, Excused.ERROR):
                referee.wrong(f"{one.part}: {type(error).__name__}: {error}")
            return
        item.answered = True
        referee.tell(one.part, f"is answered {answer}")
        if item.text not in answer:
            referee.wrong(f"{one.part} has the answer {answer}")
        run = next((run for run in item.runs if run.ended < inf), None)
        if run is None:
            referee.wrong(f"{one.part} is answered, and no run with its item has ended")
            return
        engine = session._engine
        late = referee.now - max(run.over, item.asked) > self._late and engine is not None and engine.hears
        if late and len(item.runs) == 1 and not self._late_is_explained(item.asked, one.part, run.who):
            referee.wrong(f"{one.part} is answered {referee.now - run.over:.3f} s after its run")

    def _late_is_explained(self, since: float, *who: str) -> bool:
        return any(
            self._explained(since, one, *Excused) or self._explained(0.0, one, Excused.RESULT) for one in who
        )

    def _look_at_dropped(self, item: Item, who: str) -> None:
        """A caller was told that its item was dropped: no run had it, and none has it later.

        A run whose lease a failover has lost may have had it: the new master does not know of its batch, and
        the item may be too old for the next one.
        """
        item.dropped = True
        if any(not self._explained(run.began, run.who, Excused.LEASE) for run in item.runs):
            self._referee.wrong(f"{who} is told that its item was dropped, and {item.runs[0].who} had it")
        if not self._may_be_dropped(item) and not self._explained(0.0, who, Excused.RESULT):
            self._referee.wrong(f"{who} is told that its item was dropped, before its time")

    def _may_be_dropped(self, item: Item) -> bool:
        """Whether it was kept for as long as it had to be, by clocks that do not go alike."""
        return self._referee.now - item.asked + self._ahead >= self._keep * 0.9

    # -- a run

    def _run_of(self, one: Round) -> Any:
        async def run(batch: Batch) -> Any:
            return await self._run(one, batch)

        return run

    async def _run(self, one: Round, batch: Batch) -> Any:
        run = self._begin(one.part, batch)
        rng = random.Random(f"{one.part} {batch.number}")
        fails, each = rng.random() < 0.2, rng.random() < 0.5
        try:
            await asyncio.sleep(min(one.hold, 0.4) * rng.random())
            if fails:
                if batch.attempt > self._retry:
                    run.ended = self._referee.now
                raise NoSuccessError(" ".join(batch.items))
            run.ended = self._referee.now
            if each:
                batch.results = [[text] for text in batch.items]
                return None
            return batch.items
        finally:
            run.over = self._referee.now
            self._referee.tell(one.part, f"batch {batch.number} ends")

    def _begin(self, who: str, batch: Batch) -> Running:
        referee = self._referee
        run = Running(who, batch.number, batch.attempt, batch.fencing_token, tuple(batch.items), referee.now)
        referee.tell(who, f"runs batch {run.number}, attempt {run.attempt}, of {' '.join(run.items)}")
        if not 1 <= len(run.items) <= self._most or len(set(run.items)) < len(run.items):
            referee.wrong(f"{who} runs {run.items}")
        for other in self._runs:
            self._beside(other, run)
        if self._runs:
            self._after(self._runs[-1], run)
        self._look_at_order(run)
        self._look_for_idleness(run)
        for text in run.items:
            if text not in self._items:
                referee.wrong(f"{who} runs {text}, which was refused")
            elif self._items[text].dropped:
                referee.wrong(f"{who} runs {text}, which was dropped")
            else:
                self._items[text].runs.append(run)
        self._runs.append(run)
        return run

    def _beside(self, other: Running, run: Running) -> None:
        referee = self._referee
        excused = self._explained(other.began, other.who, Excused.LEASE) or self._explained(
            other.began, run.who, Excused.LEASE
        )
        if other.over == inf and not excused:
            referee.wrong(f"two runs at once: of {other.who} and {run.who}")
        if other.token >= run.token and not excused:
            referee.wrong(f"{run.who} has the fencing token {run.token}, after {other.token}")
        again = set(other.items) & set(run.items)
        if not again or other.ended == inf:
            return
        # The end of a run is acknowledged after it: a process that leaves then, or is not heard, does not.
        left = self._here.get(_process(other.who), 0) == 0 or _process(other.who) in self._dead
        told = any(self._items[text].answered for text in again if text in self._items)
        sorts = (Excused.LEASE,) if told else (*Excused,)
        explained = self._explained(other.began, other.who, *sorts) or (self._emptied if told else left)
        if not explained and not self._explained(other.began, run.who, Excused.LEASE):
            referee.wrong(f"{run.who} runs {min(again)} again, after {other.who}")

    def _after(self, last: Running, run: Running) -> None:
        """Batches have the order of their numbers, and one that is run again has the same items."""
        if self._emptied or self._explained(0.0, run.who, Excused.LEASE):
            return
        if run.number == last.number:
            if run.items != last.items:
                self._referee.wrong(f"batch {run.number} had {last.items}, and has {run.items}")
            attempts = (last.attempt, last.attempt + 1) if last.over < inf else (last.attempt,)
            if run.attempt not in attempts:
                self._referee.wrong(f"attempt {run.attempt} follows {last.attempt}")
        elif run.number < last.number or last.ended == inf:
            what = "" if last.ended < inf else ", which has not ended"
            self._referee.wrong(f"batch {run.number} follows {last.number}{what}")

    def _look_at_order(self, run: Running) -> None:
        """What a process has left is first run in the order in which it was left."""
        if self._emptied or self._explained(0.0, run.who, Excused.LEASE):
            return
        for text in run.items:
            item = self._items.get(text)
            if item is None or item.runs:
                continue
            process = _process(item.who)
            for other in self._items.values():
                later = _process(other.who) == process and other.place > item.place
                before = bool(other.runs) or (
                    other.text in run.items and run.items.index(other.text) < run.items.index(text)
                )
                if later and before and not self._explained(item.asked, item.who, *Excused):
                    self._referee.wrong(f"{other.text} is run before {text}")

    def _look_for_idleness(self, run: Running) -> None:
        """A batch begins as soon as the one before has ended, and there is a caller of it."""
        now = self._referee.now
        waiting = [self._items[text] for text in run.items if text in self._items]
        asked = [item.asked for item in waiting if item.waits and not item.gone]
        if not asked or run.attempt > 1:
            return
        over = max((one.over for one in self._runs if one.over < inf), default=0.0)
        idle = now - max(over, min(asked)) - max(self._window, self._within or 0.0)
        if idle <= self._late or any(one.over == inf for one in self._runs):
            return
        if not any(self._late_is_explained(0.0, item.who) for item in waiting) and self._all_hear:
            self._referee.wrong(f"nobody ran a batch for {idle:.3f} s, until {run.who}")

    all_hear = True
    """Whether the sessions of all processes are told when they may ask."""

    @property
    def _all_hear(self) -> bool:
        return self.all_hear

    # -- the end

    def judge(self) -> None:
        """Nothing that was left is lost: it was run to its end, or the server still has it."""
        if self._emptied:
            return
        for item in self._items.values():
            dropped = self._may_be_dropped(item) and not item.runs
            if item.sure < inf and not (item.done or dropped) and item.text not in self.on_server:
                self._referee.wrong(f"{item.text} is lost")


def _process(who: str) -> str:
    return who.partition(".")[0]
