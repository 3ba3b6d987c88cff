"""Tickets of a `UniqueJob`: what a producer hands to a worker, in a short str that says all of itself.

`1d3600000.4yNKtd0XQ2u1v9Yh6w3qLg.Zk3vT0aP`: version and mode, ttl in ms, 128 random bits, and a check of all
this and of the job's key, so that a ticket which was cut off, or is for another job, is told from one that
nobody knows any more.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Final, Literal, Self, final, get_args

from ..errors import SessionClosedError
from ..lock.clock import milliseconds
from ..lock.context import Context
from ..lock.options import SHORTEST_TTL, Options, Seconds, seconds
from .jobsteps import TicketRun, enqueueing, withdrawing

Mode = Literal["until_executing", "until_executed", "until_expired", "until_and_while_executing"]
"""Until when a job that was enqueued makes duplicates of others with its key."""

OnConflict = Literal["raise", "skip", "replace"]

MODES: Final[tuple[Mode, ...]] = get_args(Mode)

_LETTERS: Final[dict[str, Mode]] = {
    "b": "until_executing",
    "d": "until_executed",
    "e": "until_expired",
    "w": "until_and_while_executing",
}
_FORM: Final = re.compile(r"1([bdew])([1-9]\d{0,14})\.([\w-]{22})\.([\w-]{8})", re.ASCII)
_GIVING_UP: Final = ("until_executing", "until_and_while_executing")
_BESIDE: Final = ("until_executing", "until_expired")


@final
@dataclass(frozen=True, slots=True)
class Ticket:
    """One job that was enqueued.

    Attributes:
        key: Of the job.
        ttl_ms: For how long it is unique if nobody runs it, and is remembered when it was done.
    """

    key: str
    mode: Mode
    ttl_ms: int
    id: str

    @classmethod
    def new(cls, key: str, mode: Mode, ttl_ms: int) -> Self:
        return cls(key, mode, ttl_ms, secrets.token_urlsafe(16))

    @classmethod
    def decode(cls, text: object, *, key: str) -> Self:
        """Reads a ticket of the job with that key.

        Raises:
            TypeError: It is not a str.
            ValueError: It is not a ticket, or of another key.
        """
        if not isinstance(text, str):
            raise TypeError(f"a ticket is the str that enqueue() gave, not {type(text).__name__}")
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError(f"this is not a ticket that enqueue() gave: {text[:64]!r}")
        ticket = cls(key, _LETTERS[found[1]], int(found[2]), found[3])
        if ticket.encode() != text:
            raise ValueError(f"the ticket {text!r} is not one of job {key!r}")
        return ticket

    @property
    def server_id(self) -> str:
        """The id of the ticket on the server."""
        return f"{self.id}.{self.ttl_ms}"

    def encode(self) -> str:
        (letter,) = (letter for letter, mode in _LETTERS.items() if mode == self.mode)
        said = f"1{letter}{self.ttl_ms}.{self.id}"
        check = hashlib.blake2b(self.key.encode(), digest_size=6, salt=b"aiolocks", person=b"ticket")
        check.update(b"\0" + said.encode())
        return f"{said}.{base64.urlsafe_b64encode(check.digest()).decode()}"

    def to_run(self) -> TicketRun:
        """The change to its key when the ticket is run.

        Where the key is free as soon as it begins, or stays owned whatever happens, runs of two tickets are
        nobody's concern.
        """
        return TicketRun(
            self.server_id,
            beside=self.mode in _BESIDE,
            gives_up=self.mode in _GIVING_UP,
            frees=self.mode == "until_executed",
        )


def ticket_for(key: str, mode: Mode, ttl: Seconds, on_conflict: OnConflict) -> Ticket:
    """A new ticket; raises where an argument is not as it should be."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}, not {mode!r}")
    if on_conflict not in ("raise", "skip", "replace"):
        raise ValueError(f"on_conflict must be 'raise', 'skip' or 'replace', not {on_conflict!r}")
    return Ticket.new(key, mode, milliseconds(seconds("ttl", ttl, least=SHORTEST_TTL)))


async def take_key(engine: Context, ticket: Ticket, options: Options, *, replace: bool) -> int | None:
    """None, or the milliseconds for which another ticket has it.

    Cancelled, or failed, it leaves the key as it was before: an answer that comes late is undone, for as
    long as the ttl of a run.
    """
    prefix, server_id = engine.settings.prefix, ticket.server_id
    user = engine.settings.user_json({**engine.settings.metadata, **options.metadata})
    metadata = engine.describe(user)
    call, answered = engine.start(
        enqueueing(prefix, ticket.key, server_id, ticket.ttl_ms, metadata, replace=replace),
        until=engine.now() + engine.settings.command_timeout,
    )
    try:
        left = await answered
        if engine.closing:
            raise SessionClosedError("the session was closed while waiting")
    except BaseException:
        if engine.forget(call):
            # The ticket reaches nobody: it is taken back, in order after the request.
            engine.take_back(withdrawing(prefix, ticket.key, server_id), options.ttl)
        raise
    return left
