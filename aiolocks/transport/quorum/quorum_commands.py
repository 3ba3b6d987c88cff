"""Commands for a quorum: one for all masters with its operation, or the end of a lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, final

from ..answers import Released
from ..request import Request
from .operations import QuorumOperation

T = TypeVar("T")


@final
class QuorumCommand(Request[T]):
    """A command for all masters of a quorum.

    Attributes:
        put: Makes the operation, for masters with these labels; where it elects, also with a time that the
            masters' clocks have passed.
        like: The command that goes to each of them first.
        leaving: Makes the same for a master in whose queue the caller may stand: it also leaves that.
        node_timeout: Seconds after which a master that has not answered is counted out; None: when the
            call's own time has passed.
        elects: Only masters that are known to be servers of their own may vote.
        lasts: Seconds after which the servers have undone it by themselves.
        lane: As of a command. Messages that an earlier command of the lane would still send by itself are not
            sent any more.
    """

    __slots__ = ("elects", "lasts", "leaving", "like", "node_timeout", "put")

    def __init__(
        self,
        put: Callable[..., QuorumOperation[T]],
        like: Request[Any],
        *,
        leaving: Callable[[], Request[Any]] | None = None,
        node_timeout: float | None,
        elects: bool = False,
        lasts: float = 0.0,
        lane: str = "",
    ) -> None:
        super().__init__(None, like.keys, (), lambda outcome: outcome, lane=lane)
        self.put = put
        self.like = like
        self.leaving = leaving
        self.node_timeout = node_timeout
        self.elects = elects
        self.lasts = lasts


@final
class Settling(Request[None]):
    """Ends a lane: a lease that it creates on a master after the adoption is taken back there.

    Attributes:
        owned: Asks one master whether it carries the lease.
        undo: The command that takes it back on one master.
        lasts: Seconds after which the server has undone it by itself.
    """

    __slots__ = ("lasts", "owned", "undo")

    def __init__(self, owned: Request[bool], undo: Request[Released], *, lasts: float) -> None:
        super().__init__(None, undo.keys, (), lambda outcome: outcome, lane=undo.lane)
        self.owned = owned
        self.undo = undo
        self.lasts = lasts
