"""The walk through all states of a few clients and the server, and what must hold in each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from aiolocks.transport import ASK, BELL_RUNG, GONE, Granted

from .client import TRIES, TTL_MS, Model, Stage, State
from .server import Exact, Snapshot, alike
from .sorts import Sort

_STEP_MS = 1600
"""Less than a bell lives, and less than a third of a ttl by much: who lives renews in time."""
_LATER_MS = 15_000
"""More than anything lives that was not renewed, but what is kept on purpose."""

Act = tuple[str, int]


class Whole(NamedTuple):
    """A state of everything.

    Attributes:
        clients: The knowledge of each of them.
        arrived: Those who wait, in the order in which the server has noted them down.
        last: The last fencing token.
        fresh: A client has died since time has passed, so its holds still exclude.
    """

    clients: tuple[State, ...]
    server: Snapshot
    arrived: tuple[int, ...] = ()
    last: int = 0
    fresh: bool = False


class BrokenError(AssertionError):
    """Raised where a state does not hold what it must; with the steps that lead there."""


class Walked(NamedTuple):
    """How far it got."""

    states: int
    steps: int
    depth: int
    whole: bool


class Walk:
    """All interleavings of a sort: `clients` clients, each of which wants it `waits` times.

    Args:
        waits: How often each of them begins to wait.
        deaths: How many of them may die.
    """

    def __init__(self, sort: Sort, clients: int, *, waits: int, deaths: int) -> None:
        self._sort = sort
        self._waits = waits
        self._deaths = deaths
        self._models = [
            Model(number, sort.commands(number, "xyz"[number] * 6), sort.policy) for number in range(clients)
        ]
        self._exact = Exact(clients)

    def run(self, *, depth: int | None = None, most: int | None = None) -> Walked:
        """Walks them, up to `depth` steps, or `most` states.

        Raises:
            BrokenError: Something that must hold does not; by the fewest steps that lead there.
        """
        first = Whole(tuple(State() for _ in self._models), self._exact.snapshot())
        key = _key(first)
        came_from: dict[Any, tuple[Any, Act] | None] = {key: None}
        frontier, level, steps = [(key, first)], 0, 0
        while frontier and level != depth:
            if most is not None and len(came_from) >= most:
                break
            level += 1
            following = []
            for key, whole in frontier:
                acts = list(self._acts(whole))
                for act in acts:
                    steps += 1
                    try:
                        after = self._do(whole, act)
                        self._check(after)
                    except AssertionError as error:
                        raise BrokenError(self._told([*_path(came_from, key), act], str(error))) from error
                    reached = _key(after)
                    if reached not in came_from:
                        came_from[reached] = (key, act)
                        following.append((reached, after))
                if not acts:
                    try:
                        self._check_end(whole)
                    except AssertionError as error:
                        raise BrokenError(self._told(_path(came_from, key), str(error))) from error
            frontier = following
        return Walked(len(came_from), steps, level, not frontier)

    # -- what can happen

    def _acts(self, whole: Whole) -> Iterator[Act]:
        dead = sum(state.stage == Stage.DEAD for state in whole.clients)
        for number, state in enumerate(whole.clients):
            if state.pipe:
                yield ("execute", number)
            if state.unheard:
                yield ("hear", number)
            match state.stage:
                case Stage.OUT:
                    if state.wait < self._waits:
                        yield ("begin", number)
                    continue
                case Stage.ASKING | Stage.ASLEEP:
                    yield ("give up", number)
                case Stage.HOLDING:
                    yield ("let go", number)
                    if state.wait + 1 < self._waits and self._models[number].hands_over:
                        yield ("hand over", number)
                case Stage.DEAD:
                    continue
            if dead < self._deaths:
                yield ("die", number)
        living = [state for state in whole.clients if state.stage != Stage.DEAD]
        if whole.fresh and all(state.settled for state in living):
            yield ("time passes", -1)

    def _do(self, whole: Whole, act: Act) -> Whole:
        what, number = act
        self._exact.restore(whole.server)
        if what == "time passes":
            return self._pass_time(whole)
        state, model = whole.clients[number], self._models[number]
        match what:
            case "begin":
                state = model.begin(state)
            case "give up":
                state = model.give_up(state)
            case "let go":
                state = model.let_go(state)
            case "hand over":
                state = model.hand_over(state)
            case "hear":
                state = model.heard(state)
            case "die":
                state = state._replace(
                    stage=Stage.DEAD, unheard=False, token=int(state.stage == Stage.HOLDING)
                )
                whole = whole._replace(fresh=True)
            case _:
                return self._execute(whole, number)
        return whole._replace(clients=_with(whole.clients, number, state))

    def _execute(self, whole: Whole, number: int) -> Whole:
        model, clients = self._models[number], whole.clients
        state = clients[number]
        request, pipe = state.pipe[0], state.pipe[1:]
        reply, told = self._exact.execute(number, model.command(request))
        # Pushes on the connection before the reply are read before it.
        if state.unheard:
            state = model.heard(state)
            assert state.pipe[: len(pipe) + 1] == (request, *pipe)
        state = state._replace(pipe=state.pipe[1:])
        what, _, _ = request
        arrived, last = whole.arrived, whole.last
        if what in TRIES and isinstance(reply, Granted):
            assert reply.fencing_token > last, f"fencing token {reply.fencing_token} after {last}"
            last = reply.fencing_token
            if self._sort.in_order:
                before = arrived[: arrived.index(number)] if number in arrived else arrived
                ahead = [other for other in before if clients[other].stage in {Stage.ASKING, Stage.ASLEEP}]
                assert not ahead, f"{number} got in before {ahead}, who came first"
            arrived = tuple(other for other in arrived if other != number)
        elif what in TRIES:
            assert self._exact.seated(model.commands.bell), f"{number} was refused, and is not seated"
            arrived = (*arrived, *(() if number in arrived else (number,)))
        elif what == "undo":
            arrived = tuple(other for other in arrived if other != number)
        if state.stage != Stage.DEAD:
            state = model.answered(state, request, reply)
        clients = _with(clients, number, state)
        for other, keys in told.items():
            if self._models[other].commands.bell in keys and clients[other].stage != Stage.DEAD:
                clients = _with(clients, other, clients[other]._replace(unheard=True))
        return Whole(clients, self._exact.snapshot(), arrived, last, whole.fresh)

    def _pass_time(self, whole: Whole) -> Whole:
        """Up to when a client is woken, as by one that finds that a dead client's lease has ended; or until
        nothing of the dead client is left, and those that sleep ask by themselves."""
        for _ in range(TTL_MS // _STEP_MS + 1):
            self._exact.pass_time(_STEP_MS)
            if woken := self._stay_alive(whole.clients):
                clients = tuple(
                    woken[number](state) if number in woken else self._buried(number, state, all_ended=False)
                    for number, state in enumerate(whole.clients)
                )
                return whole._replace(clients=clients, server=self._exact.snapshot())
        clients = tuple(
            self._models[number].poll(state)
            if state.stage == Stage.ASLEEP
            else self._buried(number, state, all_ended=True)
            for number, state in enumerate(whole.clients)
        )
        arrived = tuple(other for other in whole.arrived if clients[other].stage != Stage.DEAD)
        return Whole(clients, self._exact.snapshot(), arrived, whole.last, fresh=False)

    def _stay_alive(self, clients: tuple[State, ...]) -> dict[int, Callable[[State], State]]:
        """The holders renew, and those that sleep listen; which of these wake, and what each then does."""
        woken: dict[int, Callable[[State], State]] = {}
        for number, state in enumerate(clients):
            model = self._models[number]
            if state.stage == Stage.HOLDING:
                held, told = self._exact.execute(
                    number, model.commands.renew(model.token(state.wait), TTL_MS)
                )
                assert held, f"{number} has lost what it renewed in time"
                woken.update(
                    (other, self._models[other].heard)
                    for other, keys in told.items()
                    if self._models[other].commands.bell in keys and clients[other].stage == Stage.ASLEEP
                )
            elif state.stage == Stage.ASLEEP:
                (heard,), _ = self._exact.execute(number, model.command(("listen", state.wait, 0)))
                assert heard > GONE, f"{number} has lost its place, although it listened in time"
                if heard in {BELL_RUNG, ASK}:
                    woken[number] = model.heard if heard == BELL_RUNG else model.poll
        return woken

    def _buried(self, number: int, state: State, *, all_ended: bool) -> State:
        """A dead client sends nothing more, and holds nothing once its lease has ended."""
        if state.stage != Stage.DEAD:
            return state
        model = self._models[number]
        if state.token and not all_ended:
            all_ended = not self._exact.execute(number, model.commands.owned(model.token(state.wait)))[0]
        return state._replace(pipe=(), token=0 if all_ended else state.token)

    # -- what must hold

    def _check(self, whole: Whole) -> None:
        holders = [
            number
            for number, state in enumerate(whole.clients)
            if state.stage == Stage.HOLDING or (state.stage == Stage.DEAD and state.token)
        ]
        for number in holders:
            others = [other for other in holders if other != number]
            assert self._sort.free(number, others), f"{number} holds it beside {others}"
        if all(state.settled and state.stage != Stage.DEAD for state in whole.clients):
            self._check_not_idle(whole, holders)

    def _check_not_idle(self, whole: Whole, holders: list[int]) -> None:
        asleep = [number for number, state in enumerate(whole.clients) if state.stage == Stage.ASLEEP]
        for number in asleep:
            in_the_way = [
                other for other in asleep if other != number and not self._sort.free(number, [other])
            ]
            assert not self._sort.free(number, holders) or (holders and in_the_way), (
                f"{number} sleeps, though it could have it"
            )

    def _check_end(self, whole: Whole) -> None:
        """Nobody wants it any more."""
        self._exact.restore(whole.server)
        self._exact.pass_time(_LATER_MS)
        left = [key for key in self._exact.keys if not any(b".%b:" % role in key for role in self._sort.kept)]
        assert not left, f"left behind: {left}"

    def _told(self, path: list[Act], trouble: str) -> str:
        return "\n".join(
            [trouble, *(f"  {at}. {what} {number}" for at, (what, number) in enumerate(path, 1))]
        )


def _with(clients: tuple[State, ...], number: int, state: State) -> tuple[State, ...]:
    return (*clients[:number], state, *clients[number + 1 :])


def _key(whole: Whole) -> Any:
    clients = tuple(state._replace(token=int(state.token > 0)) for state in whole.clients)
    return hash((clients, alike(whole.server), whole.arrived, whole.fresh))


def _path(came_from: dict[Any, tuple[Any, Act] | None], key: Any) -> list[Act]:
    path = []
    while (step := came_from[key]) is not None:
        key, act = step
        path.append(act)
    return path[::-1]
