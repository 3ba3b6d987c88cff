"""Who wants the lock in a schedule: the real ballots, sent and answered as `quorum` does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiolocks._core.clock import dependable
from aiolocks._transport import Granted
from aiolocks._transport.ballots import UNDO, Ballot, Errand
from aiolocks._transport.faults import unanswered
from tests.simulation.histories import Holding

if TYPE_CHECKING:
    from tests.simulation.quorum import World

TTL = 100.0
NODE_TIMEOUT = 25.0
DRIFT = 0.004
"""By how much a clock runs faster or slower than the world, at most: two differ by less than 1 %."""
NOBODY_ANSWERED = unanswered(None)


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
