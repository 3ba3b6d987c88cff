"""The events, in order, for people to read."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from aiolocks.transport.request import Script

from .clockwork import Clockwork
from .server.replies import Refusal
from .server.scripting import digest

_HANDSHAKE = frozenset({b"HELLO", b"INFO", b"SUBSCRIBE", b"UNSUBSCRIBE", b"CONFIG"})
_SETTING_UP = frozenset({b"SLOTS", b"SETINFO", b"INFO", b"TRACKING", b"CACHING", b"SETNAME"})
_SCRIPTS = frozenset({b"EVAL", b"EVALSHA"})
_KEY = re.compile(r"aiolocks:([a-z]+)(?:\.([^:{]*))?:\{(.*?)\}")
_PROCESS = re.compile(r'"host":"[^"]*","pid":\d+|"[^"]*",\d+(?=,"p\d+\.)|\S+ pid \d+')
"""Host and process: no schedule depends on them."""
_METADATA = re.compile(r'\{(?:"fingerprint":"[0-9a-f]*",)?"host":…(?:,"task".*?"user":\{\})?\}')
"""Of a lease, or of a session beside its bell."""
_HEX = re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{32}|[0-9a-f]{16})(?![0-9a-f])")


class Trace:
    """Lines of what has happened, each with its time and where; made into text only when somebody reads
    it."""

    def __init__(self, clockwork: Clockwork) -> None:
        self._clockwork = clockwork
        self._events: list[tuple[float, str, Any]] = []
        self.requests = 0

    def taken(self) -> Trace:
        """All of it, for a reader; here, the world would keep it until the garbage is collected."""
        taken = Trace(self._clockwork)
        taken.requests = self.requests
        taken._events, self._events = self._events, []
        return taken

    def happened(self, where: str, what: str) -> None:
        self._events.append((self._clockwork.now, where, what))

    def requested(self, where: str, words: tuple[bytes, ...], reply: Any) -> None:
        """A server has answered a request."""
        self.requests += 1
        self._events.append((self._clockwork.now, where, (words, reply)))

    def first_seen(self) -> dict[str, float]:
        """When a server first executed something for each token; by the seat that goes with it.

        Listening creates nothing. It names a seat that its waiter may not have yet: where requests overtake
        each other, the one that takes the seat may come later.
        """
        seen: dict[str, float] = {}
        for when, _, what in self._events:
            if isinstance(what, str) or what[0][0] not in _SCRIPTS or isinstance(what[1], Refusal):
                continue
            if name_of(what[0]) == "waiters_listen":
                continue
            for word in what[0][3:]:
                if len(word) == 32 or len(word) == 16:
                    seen.setdefault(word[:16].decode(errors="replace"), when)
        return seen

    def readers(self) -> list[tuple[str, str, float]]:
        """Each grant to a reader of a span: its token, its process, and when."""
        granted = []
        for when, where, what in self._events:
            if isinstance(what, str) or what[0][0] not in _SCRIPTS or isinstance(what[1], Refusal):
                continue
            words, reply = what
            token, *rest = (word.decode(errors="replace") for word in words[3 + int(words[2]) :])
            if name_of(words) == "spans_acquire" and reply[0] == 1 and rest[3] == "r":
                granted.append((token, where.partition("←")[2].partition("#")[0], when))
        return granted

    def of_limits(self) -> Iterator[tuple[float, str, list[str], list[str], list[Any]]]:
        """Each acquire and release of limits that a server has executed in the usual form.

        With the time, the script, its keys, its arguments, and the answer.
        """
        for when, _, what in self._events:
            if isinstance(what, str) or what[0][0] not in _SCRIPTS or not isinstance(what[1], list):
                continue
            words, reply = what
            name, count = name_of(words), 3 + int(words[2])
            if name in ("limits_acquire", "permits_release") and count > 4:
                texts = [word.decode(errors="replace") for word in words]
                yield when, name, texts[3:count], texts[count:], reply

    def ticks(self) -> list[tuple[str, int]]:
        """Each grant of a tick by a server, in their order: its token, and its fencing token.

        One that is asked for again, as its answer was lost, is none.
        """
        granted: dict[tuple[str, int], None] = {}
        for _, _, what in self._events:
            if isinstance(what, str) or what[0][0] not in _SCRIPTS or isinstance(what[1], Refusal):
                continue
            words, reply = what
            if name_of(words) == "schedule_claim" and reply[0] == 1:
                granted[words[3 + int(words[2])].decode(errors="replace"), int(reply[1])] = None
        return list(granted)

    def bells_of(self, process: str) -> set[bytes]:
        """The bells that a process has named."""
        return {
            word
            for _, where, what in self._events
            if not isinstance(what, str) and f"←{process}#" in where
            for word in what[0]
            if b".bell." in word
        }

    def wire(self) -> str:
        """A digest of what servers were asked, word by word.

        Without the opening of connections, the names of hosts, and the text of scripts.
        """
        words = hashlib.sha256()
        for _, where, what in self._events:
            if isinstance(what, str) or _is_setting_up(what[0]):
                continue
            said = list(what[0])
            if said[0].upper() in _SCRIPTS:
                said[1] = name_of(what[0]).encode()
            for word in (where.encode(), *said):
                words.update(_PROCESS.sub(_anonymous, word.decode(errors="replace")).encode() + b"\0")
        return words.hexdigest()[:16]

    def text(self, *, whole: bool = False) -> str:
        """All of it; the opening of connections and channels only if it must be `whole`."""
        names: dict[str, str] = {}
        lines = []
        for when, where, what in self._events:
            if isinstance(what, str):
                text = what
            elif whole or not _is_setting_up(what[0]):
                text = f"{_request(what[0])} → {_reply(what[1])}"
            else:
                continue
            lines.append(f"{when * 1000:11.3f} ms  {where:<12} {_shortened(text, names)}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


def _is_setting_up(words: tuple[bytes, ...]) -> bool:
    return (
        words[0] in _HANDSHAKE
        or (words[0] in (b"CLIENT", b"CLUSTER") and words[1] in _SETTING_UP)
        or any(b"bell.probe" in word for word in words[1:4])
    )


def _request(words: tuple[bytes, ...]) -> str:
    name = words[0].upper()
    if name in (b"EVAL", b"EVALSHA"):
        count, step = int(words[2]), name_of(words)
        keys, arguments = words[3 : 3 + count], words[3 + count :]
        # The keys of a step are all of one name; the bell says who waits.
        shown = [key for key in keys if b".bell." in key] or keys[:1]
        return f"{step}({_joined(shown)} | {_joined(arguments)})" + (" in full" if name == b"EVAL" else "")
    return _joined(words)


def name_of(words: tuple[bytes, ...]) -> str:
    """Of the script of this request."""
    return _script(words[1] if words[0].upper() == b"EVALSHA" else digest(words[1]))


def _joined(words: tuple[bytes, ...] | list[bytes]) -> str:
    return " ".join(word.decode(errors="replace") or "''" for word in words)


def _reply(reply: Any) -> str:
    if isinstance(reply, bytes):
        text = _PROCESS.sub(_anonymous, reply.decode(errors="replace").partition("\n")[0].strip())
        return text if len(text) < 100 else text[:100] + "…"
    if isinstance(reply, (list, tuple)):
        return "[" + " ".join(_reply(item) for item in reply) + "]"
    return "" if reply is NotImplemented else str(reply)


def _shortened(text: str, names: dict[str, str]) -> str:
    """Tokens and ids of sessions become short names, in the order in which they come; keys lose what they
    share."""

    def named(match: re.Match[str]) -> str:
        found = match[0][:16]  # a seat is the beginning of a token
        return found if found.isdigit() else names.setdefault(found, f"t{len(names) + 1}")

    text = _METADATA.sub("{…}", _PROCESS.sub(_anonymous, _HEX.sub(named, text)))
    return _KEY.sub(lambda match: f"{match[3]}.{match[2]}" if match[2] else f"{match[1]}:{match[3]}", text)


def _anonymous(match: re.Match[str]) -> str:
    return '"host":…' if match[0].startswith('"') else "a process"


@cache
def _script(sha: bytes) -> str:
    """The name of a script of the library."""
    for module in [module for name, module in sys.modules.items() if name.startswith("aiolocks.")]:
        for one in vars(module).values():
            if type(one) is Script and one.sha == sha:
                return one.name
    return sha.decode()
