"""The table of commands; each family of them is a module that fills it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

WRITE, READ, OTHER = "write", "read", "other"


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        run: Executes it for a connection: `run(client, *words)`, without its own name.
        least: How many words it has with its name, at least.
        most: And at most.
        kind: WRITE, READ (what it reads can be tracked), or OTHER.
        grows: Whether it is refused when the server is out of memory.
        keys: Which of its words are keys: "first", "all", "script", "none".
        alone: Whether no script may call it.
    """

    name: bytes
    run: Callable[..., Any]
    least: int
    most: float
    kind: str
    grows: bool
    keys: str
    alone: bool

    def takes(self, length: int) -> bool:
        """Whether a request may have that many words."""
        return self.least <= length <= self.most

    def keys_of(self, words: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """The keys in a request, its name included."""
        if self.keys == "first":
            return words[1:2]
        if self.keys == "all":
            return words[1:]
        if self.keys == "script":
            return words[3 : 3 + int(words[2])]
        return ()


COMMANDS: dict[bytes, Command] = {}


def command(
    name: str,
    arity: int,
    kind: str = OTHER,
    *,
    grows: bool = False,
    keys: str | None = None,
    alone: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function as a command; `arity` is how many words it has with its name, negative: at least."""
    place = ("none" if kind == OTHER else "first") if keys is None else keys

    def enter(run: Callable[..., Any]) -> Callable[..., Any]:
        for one in name.split():
            most = arity if arity > 0 else inf
            COMMANDS[one.encode()] = Command(one.encode(), run, abs(arity), most, kind, grows, place, alone)
        return run

    return enter
