"""The scripts of a rate limit against a brute force in exact fractions, by a clock that the test moves.

The scripts run on the simulated server. The model knows no backlog: it has all charges of a bucket, each with
its moment, and computes from them, anew for each question, when the bucket is full again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import hiredis
import pytest

from aiolocks.kinds.ratelimit import (
    ADMITTED,
    AGAIN,
    FIRST,
    GONE,
    HEARING,
    KNOWN,
    PLACED,
    REFUSED,
    WAITING,
    WAITS,
    Answer,
    Bucket,
    RateLimitSteps,
    Settled,
)
from tests.simulation.world.server.server import Server

FOREVER = 10**15
SECOND = 1_000_000
LEAD, POLL, BELL = 10_000, 600_000, 2_000_000
AHEAD = 20_000
"""µs by which a request is admitted before its moment at most."""
DELAY = 200
"""µs from a ring to the request of the session that hears it."""


@dataclass
class Charge:
    """Permits that were taken; `moment` by the clock of the bucket, which never goes back."""

    token: str
    n: int
    moment: Fraction
    owed: bool = False


@dataclass
class Model:
    """One bucket, by all that was ever taken out of it."""

    bucket: Bucket
    charges: list[Charge] = field(default_factory=list)
    settled_before: int = 0
    """Charges before this one are not settled any more: the clock was set back since."""
    forgotten: int = 0
    """Of charges before this one the server knows nothing any more: the bucket was full for long since."""
    written: int = 0
    """When a step wrote last, by the server's clock; and by the bucket's, which is never set back."""
    since: Fraction = Fraction(0)

    def clock(self, now: int) -> Fraction:
        """The time by which it refills."""
        return self.since + max(0, now - self.written) if self.written else self.since

    @property
    def interval(self) -> Fraction:
        return Fraction(repr(self.bucket.per)) * SECOND / self.bucket.limit

    def full(self) -> Fraction:
        """When it is full again."""
        full = Fraction(0)
        for one in self.charges:
            full = max(full, one.moment) + one.n * self.interval
        return full

    def wait(self, clock: Fraction, total: int, n: int) -> Fraction:
        """Until it admits the last n of so many in all."""
        full = max(self.full(), clock) + (total - max(self.bucket.burst, n)) * self.interval
        return max(Fraction(0), full - clock)

    def settle(self, token: str, value: int, clock: Fraction) -> None:
        mine = [(at, one) for at, one in enumerate(self.charges) if one.token == token]
        less = sum(one.n for _, one in mine) - value
        if mine and less < 0:
            self.charges.append(Charge(token, -less, clock, owed=True))
        before = self.full()
        for at, one in reversed(mine):
            n = max(0, min(less, one.n))
            less -= n
            if at >= self.settled_before:
                one.n -= n
            elif n:  # what is not given back stays taken
                one.n -= n
                self.charges.insert(at, Charge("", n, one.moment))
                self.settled_before += 1
        assert self.full() <= before or less < 0

    def most_in_a_window(self) -> tuple[Fraction, Fraction]:
        """By brute force: the most that any window of `per` has, and the owed permits in it."""
        per = Fraction(repr(self.bucket.per)) * SECOND
        taken = sorted(self.charges, key=lambda one: one.moment)
        worst = (Fraction(0), Fraction(0))
        for first, one in enumerate(taken):
            total = owed = 0
            for other in taken[first:]:
                if other.moment > one.moment + per:
                    break
                total, owed = total + other.n, owed + other.n * other.owed
            worst = max(worst, (Fraction(total - owed), Fraction(owed)))
        return worst


@dataclass
class Waiter:
    token: str
    amounts: tuple[int, ...]
    came: Fraction
    first_told: Fraction
    at: int
    """When it asks, by the clock of the client."""


@dataclass
class Line:
    """The waiters of a session for the same limits."""

    steps: RateLimitSteps
    which: tuple[int, ...]
    waiters: list[Waiter] = field(default_factory=list)
    polls_at: int = 0
    pause: int = 5_000
    dead_since: int | None = None


class World:
    """Sessions that ask, wait, leave, die and settle, one step after the other."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.time = 1_700_000_000 * SECOND  # of the clients
        self.ahead = 0  # of the server
        self.now = self.time  # of the server, at the last request
        self.server = Server(lambda: self.time + self.ahead, run_id="0" * 40, version="7.2.0")
        self.reader = hiredis.Reader()
        self.client = self.server.connect(self.reader.feed, lambda: None, "here:1")
        self.models: list[Model] = []
        for number in range(2):
            limit = rng.choice((1, 3, 7, 20, 90))
            burst = rng.choice((1, 2, limit, 3 * limit))
            per = rng.choice((0.05, 0.7, 1.0, 3.0)) * (limit if limit < 4 else 1)
            self.models.append(Model(Bucket(f"{{x}}{number}", limit, round(per, 3), burst)))
        self.lines = [
            Line(
                RateLimitSteps("p", f"s{session}", [self.models[at].bucket for at in which], keep_ms=10_000),
                which,
            )
            for session in range(rng.choice((1, 3)))
            for which in ((0,), (1,), (0, 1))
        ]
        self.jumps = rng.random() < 0.3
        self.admitted: list[tuple[str, Line, tuple[int, ...]]] = []
        self.number = self.decisions = 0
        self.owed = [Fraction(0), Fraction(0)]
        self.jumped = False
        self.killed = 0

    # -- the server

    def run(self, command: Any) -> Any:
        for model, line in zip(self.models, self.lines, strict=False):
            if model.written and not self.look("EXISTS", line.steps.keys[0]):
                # It was full for long, and the server has forgotten it.
                model.since, model.written = max(model.since, model.full()), 0
                model.forgotten = len(model.charges)
        self.time += 1
        answer = command.parse(self.look(*command.words(as_eval=True)))
        self.now = now = self.time + self.ahead
        for model, line in zip(self.models, self.lines, strict=False):
            if bucket := self.look("GET", line.steps.keys[0]):
                written = int(bucket.split()[0])
                if written < model.written:
                    model.settled_before = len(model.charges)
                if written != model.written:
                    model.since, model.written = model.clock(now), written
        return answer

    @property
    def clock(self) -> Fraction:
        return Fraction(self.time - 1_700_000_000 * SECOND)

    def look(self, *words: Any) -> Any:
        """Looks at a key. It takes no time, as a request does, which the simulated server would count."""
        self.server._instant = -1
        self.server.feed(self.client, hiredis.pack_command(words))
        reply = self.reader.gets()
        assert not isinstance(reply, Exception), reply
        return reply

    def ask(self, line: Line, how: str, longest: int, requests: list[tuple[str, tuple[int, ...]]]) -> Answer:
        answer: Answer = self.run(line.steps.acquire(how, longest, requests))
        for (token, amounts), (status, wait) in zip(requests, answer.requests, strict=True):
            if status == ADMITTED and how != KNOWN:
                self.take(line, token, amounts, wait)
        self.hear()
        return answer

    def take(self, line: Line, token: str, amounts: tuple[int, ...], wait: int) -> None:
        """It was admitted: never too early, by any of the models."""
        assert wait <= AHEAD
        possible = Fraction(0)
        for at, n in zip(line.which, amounts, strict=True):
            if n:
                own = self.models[at].wait(self.models[at].clock(self.now), n, n)
                assert own <= wait + 1, (token, own, wait)  # told in whole microseconds
                possible = max(possible, own)
        # And without need for a wait, there is none.
        assert wait <= possible + max(self.models[at].interval for at in line.which) + 2
        for at, n in zip(line.which, amounts, strict=True):
            if n:
                moment = self.models[at].clock(self.now) + (possible if abs(wait - possible) <= 1 else wait)
                self.models[at].charges.append(Charge(token, n, moment))
        self.admitted.append((token, line, amounts))
        self.decisions += 1

    def hear(self) -> None:
        """A bell that was rung is heard by its session."""
        for line in self.lines:
            hears = line.waiters and line.dead_since is None
            if hears and self.look("GET", line.steps.bell) == b"rung":
                line.polls_at = min(line.polls_at, self.time + DELAY)

    # -- the sessions

    def go_on(self, until: int) -> None:
        """Each waiter asks when it does."""
        while True:
            due = [
                (min(line.polls_at, line.waiters[0].at), number)
                for number, line in enumerate(self.lines)
                if line.waiters and line.dead_since is None
            ]
            if not due or min(due)[0] > until:
                break
            at, number = min(due)
            self.time = max(self.time, at)
            self.poll(self.lines[number])
        self.time = max(self.time, until)
        for line in self.lines:
            if line.dead_since is not None and self.time > line.dead_since + BELL:
                line.waiters, line.dead_since = [], None

    def poll(self, line: Line) -> None:
        polls = self.time >= line.polls_at
        asked = [
            one
            for number, one in enumerate(line.waiters[:16])
            if not number or polls or one.at < self.time + 30_000
        ]
        how, due = HEARING if polls else PLACED, asked[0].at <= self.time
        if polls:
            line.polls_at = self.time + POLL
        answer = self.ask(line, how, FOREVER, [(one.token, one.amounts) for one in asked])
        if self.rng.random() < 0.05:  # the answer was lost, and the request is sent again
            again = self.run(line.steps.acquire(how, FOREVER, [(one.token, one.amounts) for one in asked]))
            admitted = [status for status, _ in answer.requests]
            assert [status for status, _ in again.requests][: len(admitted)] == [
                status if status == ADMITTED else other
                for status, (other, _) in zip(admitted, again.requests, strict=True)
            ]
            for one, (status, wait), (before, _) in zip(asked, again.requests, answer.requests, strict=True):
                if status == ADMITTED and before != ADMITTED:
                    self.take(line, one.token, one.amounts, wait)
            answer = again
        for one, (status, wait) in zip(asked, answer.requests, strict=True):
            if status == ADMITTED:
                line.waiters.remove(one)
                self.in_time(line, one)
            elif status == WAITS:
                one.at = self.time + wait - LEAD
            else:
                assert status == GONE
                assert self.jumped  # its bell has ended, by the server's clock
                ((again, later),) = self.ask(line, AGAIN, FOREVER, [(one.token, one.amounts)]).requests
                if again == ADMITTED:
                    line.waiters.remove(one)
                else:
                    one.at = self.time + later - LEAD
        if line.waiters and line.waiters[0] is asked[0] and (due or asked[0].at <= self.time):
            line.waiters[0].at = max(line.waiters[0].at, self.time + line.pause)
            line.pause = min(2 * line.pause, 500_000)
        else:
            line.pause = 5_000
        if line.steps.bell in answer.notes:
            line.polls_at = self.time

    def in_time(self, line: Line, one: Waiter) -> None:
        """It came no later than it was told at first, but for what has become known to be used since."""
        if self.jumped:
            return
        interval = max(self.models[at].interval for at in line.which)
        owed = sum(self.owed[at] for at in line.which)
        late = 2 * DELAY + 500_000 * (len(self.lines) > 3)
        if self.time < self.killed + BELL + 2 * POLL:
            late += BELL + 2 * POLL
        assert self.clock <= one.first_told + owed + interval + late, (one, self.clock)

    def ahead_of(self, at: int) -> int:
        return sum(
            one.amounts[line.which.index(at)]
            for line in self.lines
            if at in line.which
            for one in line.waiters
        )

    def step(self) -> None:
        rng = self.rng
        span = max(model.interval for model in self.models)
        self.go_on(self.time + int(rng.choice((0, 0, 1, span / 3, span, 5 * span, rng.random() * 20 * span))))
        line = rng.choice([line for line in self.lines if line.dead_since is None])
        self.number += 1
        token = f"{self.number:032x}"
        amounts = tuple(rng.randint(1, min(3, self.models[at].bucket.burst)) for at in line.which)
        if len(amounts) > 1 and rng.random() < 0.1:
            amounts = (0, *amounts[1:])
        choice = rng.random()
        if choice < 0.35:
            self.ask_at_once(line, token, amounts)
        elif choice < 0.7 and sum(len(one.waiters) for one in self.lines) < 40:
            self.ask_and_wait(line, token, amounts)
        elif choice < 0.8 and line.waiters:
            for _ in range(rng.choice((1, 1, len(line.waiters)))):
                one = line.waiters.pop(rng.choice((0, -1, rng.randrange(len(line.waiters)))))
                assert self.run(line.steps.settle(one.token, (0,) * len(one.amounts))).known >= 1
                self.decisions += 1
                self.hear()
        elif choice < 0.9 and self.admitted:
            self.settle()
        elif choice < 0.92 and line.waiters and sum(one.dead_since is None for one in self.lines) > 2:
            self.killed = line.dead_since = (
                self.time
            )  # killed: its waiters keep others out while its bell lasts
            line.polls_at = 0
        elif choice < 0.94 and self.jumps:
            self.jump()

    def ask_at_once(self, line: Line, token: str, amounts: tuple[int, ...]) -> None:
        ahead = [self.ahead_of(at) for at in line.which]
        possible = max(
            (
                self.models[at].wait(self.models[at].clock(self.time + 1 + self.ahead), total + n, n)
                for at, total, n in zip(line.which, ahead, amounts, strict=True)
                if n
            ),
            default=Fraction(0),
        )
        answer = self.ask(line, FIRST, 0, [(token, amounts)])
        ((status, wait),) = answer.requests
        self.decisions += status == REFUSED
        if not any(line.waiters for line in self.lines):
            assert (status == ADMITTED) == (wait == 0)
            interval = max(self.models[at].interval for at in line.which)
            assert possible <= wait <= possible + min(2, interval), (possible, wait)
        if self.rng.random() < 0.2:
            again = self.run(line.steps.acquire(KNOWN, 0, [(token, amounts)]))
            if status == ADMITTED:
                assert again.requests[0] == (ADMITTED, 0)
            elif again.requests[0][0] == ADMITTED:
                self.take(line, token, amounts, again.requests[0][1])

    def ask_and_wait(self, line: Line, token: str, amounts: tuple[int, ...]) -> None:
        ((status, wait),) = self.ask(line, WAITING, FOREVER, [(token, amounts)]).requests
        if status == WAITS:
            if not line.waiters:
                line.polls_at = self.time + POLL
            line.waiters.append(
                Waiter(token, amounts, self.clock, self.clock + wait, self.time + wait - LEAD)
            )

    def settle(self) -> None:
        token, line, amounts = self.rng.choice(self.admitted[-40:])
        actual = tuple(self.rng.choice((0, n - 1, n, n + 1, 3 * n)) if n else 0 for n in amounts)
        was = [sum(one.n for one in self.models[at].charges if one.token == token) for at in line.which]
        settled: Settled = self.run(line.steps.settle(token, actual))
        known = [wanted > 0 and self.knows(at, token) for at, wanted in zip(line.which, amounts, strict=True)]
        assert settled.known == sum(known)
        for at, n, knows, before in zip(line.which, actual, known, was, strict=True):
            if knows:
                self.models[at].settle(token, n, self.models[at].clock(self.now))
                self.owed[at] += max(0, n - before) * self.models[at].interval
        self.decisions += 1
        self.hear()
        for at, (_, full) in zip(line.which, settled.limits, strict=True):
            expected = max(Fraction(0), self.models[at].full() - self.models[at].clock(self.now))
            assert abs(full - expected) <= self.models[at].interval / 100 + 2, (full, expected)

    def jump(self) -> None:
        """The server's clock is set: windows are looked at up to this moment."""
        self.check_windows()
        by = self.rng.choice((-1, 1)) * self.rng.choice((30_000, SECOND, 5 * SECOND, 3600 * SECOND))
        self.ahead += by
        self.jumped = True
        for model in self.models:
            line = next(line for line in self.lines if line.which == (self.models.index(model),))
            # Only a step that writes knows of it.
            self.number += 1
            self.ask(line, FIRST, 0, [(f"{self.number:032x}", (model.bucket.burst,))])

    def knows(self, at: int, token: str) -> bool:
        """Whether a log has it: it goes when its bucket has been full for ten seconds, and not before."""
        key = self.lines[at].steps.keys[1]
        if any(token.encode() in entry for entry in self.look("LRANGE", key, 0, -1)):
            return True
        model = self.models[at]
        assert all(number < model.forgotten for number, one in enumerate(model.charges) if one.token == token)
        return False

    def check_windows(self) -> None:
        for model in self.models:
            most, owed = model.most_in_a_window()
            assert most <= model.bucket.limit + model.bucket.burst, (model.bucket, most, owed)

    def drain(self) -> None:
        """All that wait get in, in the end."""
        self.go_on(self.time + 3 * BELL)
        for _ in range(3000):
            waiting = [line.waiters[0].at for line in self.lines if line.waiters]
            if not waiting:
                return
            self.go_on(max(self.time, min(waiting)) + SECOND)
        raise AssertionError([line.waiters for line in self.lines])


def run(seed: int, steps: int) -> int:
    world = World(seed)
    for _ in range(steps):
        world.step()
    world.drain()
    world.check_windows()
    return world.decisions


@pytest.mark.parametrize("seed", range(8))
def test_each_decision_is_that_of_the_model(seed: int) -> None:
    assert run(seed, 120) > 40


@pytest.mark.more
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_decisions_are_those_of_the_model(part: int) -> None:
    decisions, seed = 0, 1000 * (part + 1)
    while decisions < 1000:
        decisions += run(seed, 200)
        seed += 1
