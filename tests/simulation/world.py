"""Redlock's protocol without servers, sockets or time: the real ballots, masters of a few lines, and a seed.

A *schedule* is one run: a few clients that want the same name, some masters, and messages that take their
time, overtake each other or get lost. Everything that happens is drawn from one random generator, so that a
seed says it all. Times are milliseconds of the world; every clock runs a little faster or slower than that,
and the masters' stand wherever they stand.

What is simulated is what lies outside the protocol: the network, the masters' memory (the scripts of
`aiolocks/lua` in Python), the clocks. What is decided is decided by `aiolocks._transport.elections`.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from aiolocks._core.clock import dependable
from aiolocks._transport import Command, Granted
from aiolocks._transport.ballots import UNDO, Ballot, Errand
from aiolocks._transport.commands.redlock import RedlockCommands
from aiolocks._transport.elections import Acquiring
from aiolocks._transport.faults import unanswered

TTL = 100.0
RETENTION = 10 * TTL
NODE_TIMEOUT = 25.0
DRIFT = 0.004
"""By how much a clock runs faster or slower than the world, at most: two differ by less than 1 %."""
NOBODY_ANSWERED = unanswered(None)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What may happen in a schedule, and what is wrong with the protocol on purpose.

    Attributes:
        skew: Milliseconds by which a master's clock may stand elsewhere than the world's.
        restarts: How a master comes back: `kept` (with its data), `late` (without, after more than a ttl),
            `empty` (without, at once), or None, if none dies.
        jumps: Milliseconds by which a master's clock may jump, once.
        acquiring: The ballot by which a lease is acquired.
        unconditional: A master takes the fencing token of a lease, and says so, whatever it carries.
        unbounded: A master confirms also what is smaller than what it has minted.
        hasty: Three masters, three clients who hold it for a moment, many messages that come late or never.
    """

    skew: float = 0.0
    restarts: str | None = None
    jumps: float = 0.0
    acquiring: type[Acquiring] = Acquiring
    unconditional: bool = False
    unbounded: bool = False
    hasty: bool = False


@dataclass
class Holding:
    """One lease, as its client saw it; times of the world."""

    invoked: float
    granted: float
    fencing_token: int
    end: float


class Master:
    """The memory of one server, and the steps that change it."""

    def __init__(self, rate: float, offset: float, rules: Rules) -> None:
        self.rate = rate
        self.offset = offset
        self.up = True
        self.lock: tuple[str, str, float] | None = None  # token, fencing token, end by the own clock
        self.fence: tuple[int, float] | None = None
        self._rules = rules

    def clock(self, now: float) -> float:
        return now * self.rate + self.offset

    def forget_everything(self) -> None:
        self.lock = self.fence = None

    def execute(self, command: Command[Any], now: float) -> Any:
        """As a server would: the raw reply."""
        time = self.clock(now)
        if self.lock is not None and self.lock[2] <= time:
            self.lock = None
        if self.fence is not None and self.fence[1] <= time:
            self.fence = None
        if command.script is None:
            return None if self.lock is None else f"{self.lock[0]}:{self.lock[1]}:{{}}".encode()
        return _STEPS[command.script.name](self, time, *command.args)

    def _acquire(self, time: float, token: str, ttl: int, retention: int, *_: Any) -> list[Any]:
        if self.lock is None:
            minted = int(time * 1000)
            if self.fence is not None and self.fence[0] >= minted:
                minted = self.fence[0] + 1
            self.fence = (minted, time + retention)
            self.lock = (token, str(minted), time + ttl)
        elif self.lock[0] == token:
            self.lock = (*self.lock[:2], time + ttl)
        else:
            return [0, int(self.lock[2] - time)]
        return [1, self.lock[1].encode(), 0]

    def _seal(self, time: float, token: str, sealed: int, retention: int, given: int) -> int:
        if self.lock is None or self.lock[0] != token:
            if not self._rules.unconditional:
                return 0
        else:
            if not (given or self._rules.unbounded) and int(self.lock[1]) > sealed:
                return 0
            self.lock = (token, f"0{sealed}", self.lock[2])
        if self.fence is None or self.fence[0] < sealed:
            self.fence = (sealed, time + retention)
        return 1

    def _release(self, _: float, token: str, *__: Any) -> list[Any]:
        held = self.lock is not None and self.lock[0] == token
        if held:
            self.lock = None
        return [int(held)]

    def _renew(self, time: float, token: str, ttl: int, *_: Any) -> int:
        if self.lock is None or self.lock[0] != token:
            return 0
        self.lock = (*self.lock[:2], time + ttl)
        return 1


_STEPS: dict[str, Callable[..., Any]] = {
    "lock_acquire": Master._acquire,
    "redlock_seal": Master._seal,
    "lock_release": Master._release,
    "lock_renew": Master._renew,
}


@dataclass
class World:
    """One schedule."""

    seed: int
    rules: Rules
    holdings: list[Holding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = rng = random.Random(self.seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        hasty = self.rules.hasty
        number = 3 if hasty or rng.random() < 0.7 else 5
        self.labels = tuple(map(str, range(number)))
        skew = self.rules.skew
        self.masters = [
            Master(1 + rng.uniform(-DRIFT, DRIFT), 1e6 + rng.uniform(-skew, skew), self.rules)
            for _ in range(number)
        ]
        self.loss = 0.1 if hasty else rng.choice((0.0, 0.02, 0.1))
        self.slow = 0.35 if hasty else rng.choice((0.02, 0.1, 0.3))  # the part of messages that take long
        self.ordered = not hasty and rng.random() < 0.6
        self.commands = RedlockCommands("p", "n", retention_ms=int(RETENTION), session="s", node_timeout=1.0)
        for client in range(3 if hasty else rng.choice((2, 3))):
            self.after(rng.uniform(0, 10), Client(self, client).begin)
        self._misfortunes()

    def _misfortunes(self) -> None:
        rng, rules = self.random, self.rules
        if rules.jumps:
            for master in rng.sample(self.masters, rng.randint(1, len(self.masters) // 2 + 1)):
                self.after(
                    rng.uniform(0, 2 * TTL), self._jump, master, rng.uniform(-rules.jumps, rules.jumps)
                )
        if rules.restarts is not None:
            for master in rng.sample(self.masters, rng.randint(1, len(self.masters) // 2 + 1)):
                self.after(rng.uniform(0, 3 * TTL), self._die, master)

    def _jump(self, master: Master, by: float) -> None:
        master.offset += by

    def _die(self, master: Master) -> None:
        master.up = False
        if self.rules.restarts != "kept":
            master.forget_everything()
        away = self.random.uniform(1, 20)
        if self.rules.restarts == "late":
            away += TTL * (1 + 2 * DRIFT)
        self.after(away, self._come_back, master)

    def _come_back(self, master: Master) -> None:
        master.up = True

    # -- time and messages

    def after(self, delay: float, what: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, what, args))

    def run(self) -> list[Holding]:
        events = self._events
        while events:
            self.now, _, what, args = heapq.heappop(events)
            what(*args)
        return self.holdings

    def delay(self) -> float:
        """Of one message, one way."""
        rng = self.random
        return (
            rng.uniform(NODE_TIMEOUT / 4, NODE_TIMEOUT * 1.5)
            if rng.random() < self.slow
            else rng.uniform(0.2, 1.5)
        )

    def lost(self) -> bool:
        return self.loss > 0 and self.random.random() < self.loss


class Round:
    """One ballot under way, as `quorum` drives it."""

    def __init__(
        self, client: Client, ballot: Ballot[Any], ended: Callable[[Any], None] | None = None
    ) -> None:
        self._client = client
        self._world = client.world
        self.ballot = ballot
        self._ended = ended
        self._open: set[Errand] = set()
        self.stopped = False
        for errand in ballot.open():
            self._send(errand)

    def _send(self, errand: Errand) -> None:
        world, client = self._world, self._client
        if errand.phase != UNDO:
            self._open.add(errand)
            world.after(NODE_TIMEOUT * client.rate, self._failed, errand)
        if world.lost():
            return
        arrival = world.now + world.delay()
        if world.ordered:
            arrival = client.arrivals[errand.master] = max(arrival, client.arrivals[errand.master])
        world.after(arrival - world.now, self._arrive, errand)

    def _arrive(self, errand: Errand) -> None:
        world = self._world
        master = world.masters[errand.master]
        if not master.up:
            return
        reply = master.execute(errand.command, world.now)
        if errand in self._open and not world.lost():
            world.after(world.delay(), self._replied, errand, reply)

    def _replied(self, errand: Errand, reply: Any) -> None:
        if errand in self._open:
            self._open.remove(errand)
            if not self.stopped:
                self._go_on(self.ballot.replied(errand.master, errand.phase, errand.command.parse(reply)))

    def _failed(self, errand: Errand) -> None:
        if errand in self._open:
            self._open.remove(errand)
            if not self.stopped:
                self._go_on(self.ballot.failed(errand.master, errand.phase, NOBODY_ANSWERED))

    def _go_on(self, errands: list[Errand]) -> None:
        for errand in errands:
            self._send(errand)
        if self._ended is not None and self.ballot.decided:
            ended, self._ended = self._ended, None
            ended(self.ballot.outcome)


class Client:
    """Wants the lock a few times, holds it for a while, and lets go, or dies."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.rate = 1 + world.random.uniform(-DRIFT, DRIFT)
        self.arrivals = [0.0] * len(world.masters)  # when what was sent last gets to each
        self._left = world.random.choice((1, 2, 3))  # so many times
        self._tries = 8
        self._number = number
        self._tokens = 0
        self._token = ""
        self._invoked = self._sent = self._deadline = 0.0
        self._round: Round | None = None
        self._holding: Holding | None = None
        self._releases_at = 0.0

    def _valid_until(self, sent: float) -> float:
        """The local deadline, in the world's time: the client's clock runs at its own rate."""
        return sent + dependable(TTL / 1000) * 1000 * self.rate

    def begin(self) -> None:
        self._tokens += 1
        self._token = f"{self._number}{self._tokens:x}".rjust(4, "0")
        self._invoked = self.world.now
        self._ask()

    def _ask(self) -> None:
        self._sent = self.world.now
        put: Any = self.world.commands.acquire(self._token, int(TTL), "{}").put  # type: ignore[attr-defined]
        ballot = self.world.rules.acquiring(self.world.labels, **put.keywords)
        self._round = Round(self, ballot, self._answered)

    def _answered(self, outcome: Any) -> None:
        world, rng = self.world, self.world.random
        if isinstance(outcome, Granted):
            self._deadline = self._valid_until(self._sent)
            if world.now < self._deadline:
                self._hold(outcome.fencing_token)
                return
            self._let_go()
        self._tries -= 1
        if self._tries:
            # With the same token only where requests of a token stay in order: an undo that comes late would
            # else take what was granted after it.
            again = self._ask if world.ordered and rng.random() < 0.5 else self.begin
            world.after(rng.uniform(0.5, 4 if world.rules.hasty else 20), again)

    def _hold(self, fencing_token: int) -> None:
        world, rng = self.world, self.world.random
        self._holding = Holding(self._invoked, world.now, fencing_token, self._deadline)
        world.holdings.append(self._holding)
        hold = rng.choice((1.0, 1.0) if world.rules.hasty else (1.0, 1.0, 10.0, TTL, 3 * TTL)) * rng.random()
        self._releases_at = world.now + hold
        if hold < TTL / 3:
            world.after(hold, self._release, self._holding)
        else:
            world.after(TTL / 3, self._renew, self._holding)

    def _renew(self, holding: Holding) -> None:
        world = self.world
        if self._holding is not holding:
            return
        if world.now >= self._deadline:
            self._lose()
            return
        sent = world.now
        self._supersede()
        put: Any = world.commands.renew(self._token, int(TTL)).put  # type: ignore[attr-defined]

        def renewed(outcome: Any) -> None:
            if self._holding is not holding or world.now >= self._deadline:
                return
            if outcome is True:
                self._deadline = holding.end = self._valid_until(sent)
            elif outcome is False:
                self._lose()

        self._round = Round(self, put(world.labels), renewed)
        if self._releases_at < world.now + TTL / 4:
            world.after(max(0.0, self._releases_at - world.now), self._release, holding)
        else:
            world.after(TTL / 4, self._renew, holding)

    def _lose(self) -> None:
        assert self._holding is not None
        self._holding.end = min(self._holding.end, self.world.now)
        self._holding = None
        self._let_go()
        self._next()

    def _release(self, holding: Holding) -> None:
        if self._holding is not holding:
            return
        holding.end = min(self._deadline, self.world.now)
        self._holding = None
        if self.world.random.random() < 0.9:  # otherwise it dies, and the ttl ends it
            self._let_go()
            self._next()
        else:
            self._supersede()

    def _supersede(self) -> None:
        if self._round is not None:
            self._round.stopped = True

    def _let_go(self) -> None:
        self._supersede()
        put: Any = self.world.commands.release(self._token, int(TTL), ring=False).put  # type: ignore[attr-defined]
        self._round = Round(self, put(self.world.labels))

    def _next(self) -> None:
        self._left -= 1
        if self._left > 0:
            self.world.after(self.world.random.uniform(0, 2 if self.world.rules.hasty else 20), self.begin)


def two_holders(holdings: list[Holding]) -> bool:
    """Whether two relied on it at a time."""
    held = sorted((holding.granted, holding.end) for holding in holdings)
    latest = float("-inf")
    for granted, end in held:
        if granted < latest:
            return True
        latest = max(latest, end)
    return False


def falling_token(holdings: list[Holding]) -> bool:
    """Whether a lease that was asked for after another one was had does not have the larger fencing token."""
    ordered = sorted(holdings, key=lambda holding: holding.granted)
    for index, earlier in enumerate(ordered):
        for later in ordered[index + 1 :]:
            if later.fencing_token == earlier.fencing_token:
                return True
            if earlier.granted < later.invoked and later.fencing_token < earlier.fencing_token:
                return True
    return False


def tokens_out_of_order(holdings: list[Holding]) -> bool:
    """Whether the tokens of leases do not rise in the order in which they were had."""
    ordered = sorted(holdings, key=lambda holding: holding.granted)
    return any(a.fencing_token >= b.fencing_token for a, b in pairwise(ordered))
