"""One client, with one task that wants the lock: what it is about to do, and what a reply or a push changes.

It is what `Waiter` and `Gate` do for a task that is alone in its session, without their timers.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from aiolocks.lock.lease import QueuePolicy
from aiolocks.transport import (
    ASK,
    BELL_RUNG,
    GONE,
    IN_TURN,
    OWING,
    PASSING,
    SEATED,
    TOLD,
    WAITING,
    Granted,
    listening,
)
from aiolocks.transport.request import NOT_HELD, JoinableRelease, Request

TTL_MS = 6000


TRIES = ("try", "hand over")
"""The requests that may be granted."""


class Stage(enum.IntEnum):
    """The activity of its task."""

    OUT = 0
    ASKING = 1
    ASLEEP = 2
    HOLDING = 3
    DEAD = 4


class State(NamedTuple):
    """All that the client knows. Its requests are executed in their order.

    Attributes:
        pipe: Requests that were sent and are not executed yet: what, for which wait, how the asker stands.
        unheard: Its bell was rung, and it has not read that yet.
        wait: How many waits there were before.
        taken: Its place may stand in the queue.
        armed: For all that it knows, its bell hangs and is heard.
        again: It was woken while it was asking.
        token: The fencing token of what it holds.
    """

    stage: Stage = Stage.OUT
    pipe: tuple[tuple[str, int, int], ...] = ()
    unheard: bool = False
    wait: int = 0
    taken: bool = False
    armed: bool = False
    again: bool = False
    token: int = 0

    @property
    def settled(self) -> bool:
        """Whether nothing more happens to it by itself."""
        return not self.pipe and not self.unheard and self.stage != Stage.ASKING


class Model:
    """The steps of one client.

    Args:
        number: Which one it is.
        commands: How it asks.
        policy: Of its kind.
    """

    def __init__(self, number: int, commands: Any, policy: QueuePolicy) -> None:
        self.number = number
        self.commands = commands
        self._manner = policy

    def token(self, wait: int) -> str:
        """Of letters, for each wait another; the seat, which is its first half, too."""
        return "abc"[self.number] * 8 + "abcdef"[wait] * 24

    # -- what the task does

    def begin(self, state: State) -> State:
        return self._ask(state)

    def give_up(self, state: State) -> State:
        """Cancelled, or out of time."""
        tried = any(what in TRIES and wait == state.wait for what, wait, _ in state.pipe)
        last = state.taken or tried
        pipe = state.pipe
        if last:
            pipe = (*pipe, ("undo", state.wait, int(last)))
        if last:
            state = state._replace(taken=False, armed=False)
        return _out(state)._replace(pipe=pipe)

    def let_go(self, state: State) -> State:
        return _out(state)._replace(pipe=(*state.pipe, ("release", state.wait, 0)))

    @property
    def hands_over(self) -> bool:
        """Whether a task of its session can have it right after another one, by one request."""
        return type(self.commands.release(self.token(0), TTL_MS, ring=False)) is JoinableRelease

    def hand_over(self, state: State) -> State:
        """Lets go, and the next task of its session asks, in one request."""
        asking = self._ask(_out(state))
        *before, (_, wait, standing) = asking.pipe
        owing = 0 if self._manner.exclusive else OWING
        return asking._replace(pipe=(*before, ("hand over", wait, standing | owing)))

    def poll(self, state: State) -> State:
        """It asks by itself, after a time."""
        return self._ask(state)

    # -- what is executed, and what comes back

    def command(self, request: tuple[str, int, int]) -> Any:
        what, wait, how = request
        token = self.token(wait)
        match what:
            case "try":
                return self.commands.acquire(token, TTL_MS, "{}", how)
            case "hand over":
                release = self.commands.release(self.token(wait - 1), TTL_MS, ring=False)
                acquire = self.commands.acquire(token, TTL_MS, "{}", how)

                def parse(raw: Any) -> Any:
                    assert raw != NOT_HELD, f"{self.number} has lost what it hands over"
                    return acquire.parse(raw)

                return Request(release.both, acquire.keys, (*acquire.args, release.token), parse)
            case "listen":
                return listening([self.commands.listener(token)])
            case "undo":
                return self.commands.release(token, TTL_MS, ring=True, leave=bool(how))
            case _:
                return self.commands.release(token, TTL_MS, ring=True)

    def heard(self, state: State) -> State:
        """It reads that its bell was rung."""
        state = state._replace(unheard=False, armed=False)
        if state.stage == Stage.ASLEEP:
            return self._ask(state, passing=True)
        if state.stage == Stage.ASKING:
            return state._replace(again=True)
        return state

    def answered(self, state: State, request: tuple[str, int, int], reply: Any) -> State:
        """The reply to the request that was the first of its pipe."""
        what, wait, how = request
        if what == "listen":
            return self._listened(state, *reply)
        own = self.commands.bell in reply.rung
        if what not in TRIES or wait != state.wait or state.stage != Stage.ASKING:
            assert what not in TRIES or wait != state.wait
            return self.heard(state) if own else state
        if isinstance(reply, Granted):
            state = self._granted(state, reply, how)
            return self.heard(state) if own else state
        return self._refused(state._replace(armed=state.armed and not own))

    def _granted(self, state: State, reply: Granted, how: int) -> State:
        if how & SEATED:
            state = state._replace(taken=False, armed=False)
        return state._replace(stage=Stage.HOLDING, again=False, token=reply.fencing_token)

    def _refused(self, state: State) -> State:
        state = state._replace(taken=True)
        if state.again:
            return self._ask(state, passing=True)
        if not state.armed:
            state = state._replace(armed=True, pipe=(*state.pipe, ("listen", state.wait, 0)))
        return state._replace(stage=Stage.ASLEEP)

    def _listened(self, state: State, answer: int) -> State:
        if not state.armed:
            return state
        if answer in {GONE, BELL_RUNG}:
            return self.heard(state)
        return self._ask(state, passing=True) if answer == ASK and state.stage == Stage.ASLEEP else state

    def _ask(self, state: State, *, passing: bool = False) -> State:
        standing = (
            (SEATED if state.taken else 0)
            | (IN_TURN if self._manner.strict else 0)
            | (PASSING if passing else 0)
            | WAITING
            | TOLD
        )
        return state._replace(
            stage=Stage.ASKING,
            pipe=(*state.pipe, ("try", state.wait, standing)),
            again=False,
        )


def _out(state: State) -> State:
    return state._replace(stage=Stage.OUT, wait=state.wait + 1, again=False, token=0)
