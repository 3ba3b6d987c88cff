"""What may happen in a schedule, and the servers in it: the scripts of `aiolocks/lua` on a little memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiolocks._transport import Command
from aiolocks._transport.elections import Acquiring


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
        hasty: Three masters, three clients who hold it for a moment, many messages that come late or never.
    """

    skew: float = 0.0
    restarts: str | None = None
    jumps: float = 0.0
    acquiring: type[Acquiring] = Acquiring
    unconditional: bool = False
    hasty: bool = False


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
            if not given and int(self.lock[1]) > sealed:
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
