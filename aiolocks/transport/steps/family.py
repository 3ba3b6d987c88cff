"""A family of kinds as one value: the keys under a name, the steps on the server, and how they are looked at.

Code that goes through every kind reads the families from this module: inspection, forced release, the
command line, the dashboard, the table of an ACL, and the tables of the tests and of the reference.
"""

from __future__ import annotations

import copy
import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from types import ModuleType
from typing import Any, Final, Generic, NamedTuple, TypeVar, final

from ..answers import Answer, Kept, Released, released
from ..keys import key
from ..request import Argument, Request, Script
from .checks import read_beside
from .snapshots import Content, Snapshot

T = TypeVar("T")

ALL_KEYS: Final = 1000
"""Of the keys of a name; more than any family has."""
_NOBODY: Final = "0" * 64
"""The token of a mark which says that an operator has freed a lease."""
_INSPECT: Final = Script("inspect_names", "bells", moves=True)

_OFFERED: Final = {
    "acquire": "token ttl retention metadata flags seat lasts",
    "steal": "token ttl retention metadata",
    "renew": "token ttl retention lasts seat",
    "release": "token retention seat ring",
    "adopt": "old new ttl retention metadata",
    "annotate": "token metadata",
    "owned": "token",
    "locked": "",
}
"""The words that a request of each step may have, besides the words of each name (`Family.values`).

`ttl`, `retention` and `lasts` are milliseconds: of the lease, of its fence, and of what else stays with it.
`seat` tells the waiters of a session apart, where their order counts. `flags` are `standing`. `ring` is 1 if
a release is to wake the next waiter; where a bell does not come last, it is letters (`leave_letters`). A
release has `at_least` as its last word, where it has any.
"""


@final
class Step(Generic[T]):
    """One step on the server.

    Args:
        words: The arguments of the script, in its order, of the words that are offered (`_OFFERED`).
        reads: Turns the reply into what the caller wants to know; None where the steps of the name do that
            themselves, because it takes what they know (`FamilySteps._answer`).
        keys: How many of the name's keys it has, if not all.

    Attributes:
        bell_last: As of its family.
        own: Its reply is read by the steps of the name.
        pick: Its arguments, of all that are offered. Made once, so that a request costs one call in C.
    """

    __slots__ = ("bell_last", "keys", "own", "pick", "reads", "script", "words")

    pick: Callable[[tuple[Argument, ...]], tuple[Argument, ...]]

    def __init__(
        self,
        script: Script,
        words: str,
        reads: Callable[[Any], T] | None = None,
        *,
        keys: int = ALL_KEYS,
    ) -> None:
        self.script = script
        self.words = tuple(words.split())
        self.bell_last = False
        self.own = reads is None
        self.reads: Callable[[Any], T] = reads or _unread
        self.keys = keys

    def offer(self, offered: tuple[str, ...], *, bell_last: bool) -> Step[T]:
        """The same step, where its arguments come from these, by name."""
        step = copy.copy(self)
        step.bell_last = bell_last
        places = [offered.index(word) for word in self.words]
        first = places[0] if places else 0
        if places == list(range(first, first + len(places))):
            step.pick = itemgetter(slice(first, first + len(places)))
        else:
            step.pick = itemgetter(*places)
        return step


def _unread(raw: Any) -> Any:
    raise AssertionError(raw)


@final
class Family:
    """The keys that several kinds keep under a name in the same way, and the steps by which they do.

    Args:
        keys: The roles of the keys that each request names, after the name's own; `bell` is the key of a
            waiter.
        values: The arguments that each name always has, besides the arguments that a request brings.
        hand_over: The script of a release and the acquire of the next waiter of the session in one.
        hand_over_wakes: Whether that wakes waiters as a release does; else it goes only where the release is
            to wake no waiter.
        bell_last: The bell comes last, and only a waiter names it.
        roles: The keys that are read, to look at a name; the first of them its own.
        read: Turns what they hold into a `Snapshot`.
        passive: Further keys, which stay when there is no holder and no waiter. A role that ends with a dot
            stands for all roles that begin so. Of the other keys it is seen whether aiolocks wrote them.
        seat: Characters of the seat in an entry of its queue.
        force: Frees a name from its holders.
        forced: Its keys.
        forced_by_name: Only if its kind is named: nothing is held.
        shallow: Its content may be large, and is the user's: it is not read.
    """

    def __init__(
        self,
        *,
        keys: str = "",
        values: str = "",
        acquire: Step[Answer] | None = None,
        steal: Step[Answer] | None = None,
        renew: Step[Kept] | None = None,
        release: Step[Released] | None = None,
        adopt: Step[int | None] | None = None,
        annotate: Step[bool] | None = None,
        owned: Step[bool] | None = None,
        locked: Step[bool] | None = None,
        hand_over: Script | None = None,
        hand_over_wakes: bool = False,
        bell_last: bool = False,
        roles: str = "",
        read: Callable[..., Snapshot],
        passive: str = "fence",
        seat: int = 0,
        force: Script | None = None,
        forced: str = "",
        forced_by_name: bool = False,
        shallow: bool = False,
    ) -> None:
        self.keys = tuple(keys.split())
        self.values = tuple(values.split())
        self._bell_last = bell_last
        self.acquire = self._offered("acquire", acquire)
        self.steal = self._offered("steal", steal)
        self.renew = self._offered("renew", renew)
        self.release = self._offered("release", release)
        self.adopt = self._offered("adopt", adopt)
        self.annotate = self._offered("annotate", annotate)
        self.owned = self._offered("owned", owned)
        self.locked = self._offered("locked", locked)
        self.hand_over = hand_over
        self.hand_over_wakes = hand_over_wakes
        self.roles = ("", *roles.split())
        self.passive = tuple(passive.split())
        self.can_be_held = force is not None and not forced_by_name
        """Whether there is anything to free."""
        self.can_be_forced = force is not None
        """Whether there is that, or what an operator may reset."""
        self._beside = tuple(role for role in self.passive if role not in self.roles and role[-1] != ".")
        self._beginnings = ("bell.", *(role for role in self.passive if role[-1] == "."))
        self._read = read
        self._seat = seat
        self._force = force
        self._forced = ("", *forced.split())
        self._shallow = shallow

    def _offered(self, verb: str, step: Step[T] | None) -> Step[T]:
        if step is None:
            return _MISSING
        return step.offer((*_OFFERED[verb].split(), *self.values), bell_last=self._bell_last)

    @property
    def keys_read(self) -> int:
        """How many keys of a name `look` reads."""
        return 1 + len(self.roles) + len(self._beside)

    def knows(self, role: str) -> bool:
        """Whether a key of that role is ours."""
        return self.shows(role) or role in self.passive or role.startswith(self._beginnings)

    def shows(self, role: str) -> bool:
        """Whether there may be a holder or a waiter where there is a key of that role."""
        return role == "queue" or (role in self.roles and role not in self.passive)

    def look(
        self, prefix: str, kind: str, names: Sequence[str], *, waiters: int = 0
    ) -> Request[list[Snapshot]]:
        """Reads these names, in their order; the first `waiters` of each name are described."""
        roles = ("queue", *self.roles, *self._beside)
        keys = tuple(key(prefix, kind, name, role) for name in names for role in roles)
        told = 0 if self._shallow else len(self.roles)
        return Request(_INSPECT, keys, (len(roles), self._seat, told, waiters), self._snapshots)

    def force(self, prefix: str, kind: str, name: str, snapshot: Snapshot, by: str = "") -> Request[Released]:
        """Frees what was found: the grants with a fencing token up to the latest that was found.

        `by`: the operator's metadata, as JSON, for the holders; empty if they are not to be told.
        """
        assert self._force is not None
        # A clock that was set back does not count: what was granted carries the later number.
        upto = max(snapshot.now_us, *(holder.fencing_token or 0 for holder in snapshot.grants), 0)
        keys = tuple(key(prefix, kind, name, role) for role in self._forced)
        # A Redlock is told by no majority of its masters.
        mark = f"{_NOBODY}:{upto}:{by}" if by and "stolen" in self.passive and kind != "redlock" else ""
        return Request(self._force, keys, (str(upto), snapshot.ticket, mark), released)

    def _snapshots(self, raw: Any) -> list[Snapshot]:
        now_us, *names = raw
        return [self._snapshot(int(now_us), *one) for one in names]

    def _snapshot(self, now_us: int, waiters: int, told: Sequence[bytes], *found: Any) -> Snapshot:
        roles = (*self.roles, *self._beside)
        contents = dict(zip(roles, (Content.of(*one) for one in found), strict=True))
        snapshot = self._read(now_us, contents)
        beside = {role: contents[role] for role in self._beside}
        return snapshot.with_waiters(waiters, told).with_problems(read_beside(beside))


_MISSING: Final[Step[Any]] = Step(_INSPECT, "")


@final
class Kind(NamedTuple):
    """One kind of lock, for code that goes through every kind.

    Attributes:
        family: How it is kept.
        name: The name space of its keys, and its name for operators.
        title: Its public class.
        value: What `LockInfo.value` counts, as a text with `{}` for the number; empty where only its holders
            show the number. None: it has no number.
        lasting: It has a history, of interest while no holder runs or leads.
        needs: The commands that its scripts call besides the commands of a `Lock`.
        of: The name space whose keys it has, if not one of its own.
        made_by: The class that has a method which makes it, if users do not make it themselves.
        measured: The metrics of `contrib/_measuring.py` that it has, where its calls give no lease.
    """

    family: Family
    name: str
    title: str
    value: str | None = None
    lasting: bool = False
    needs: tuple[str, ...] = ()
    of: str = ""
    made_by: str = ""
    measured: tuple[str, ...] = ()


_modules: Final[list[str]] = []


def kinds_are_in(modules: Iterable[str]) -> None:
    """Says which modules may have `KINDS`. They are imported when all kinds are asked for."""
    _modules.extend(modules)


@functools.cache
def kinds() -> Mapping[str, Kind]:
    """All kinds, by name."""
    return {kind.name: kind for module in _modules for kind in _declared(importlib.import_module(module))}


def kind_in_use(name: str) -> Kind | None:
    """The kind of that name, without an import: None if this process has not used it."""
    modules = [sys.modules[module] for module in _modules if module in sys.modules]
    return next((kind for module in modules for kind in _declared(module) if kind.name == name), None)


def _declared(module: ModuleType) -> tuple[Kind, ...]:
    found: tuple[Kind, ...] = getattr(module, "KINDS", ())
    return found


@functools.cache  # looking at keys asks for each of them
def families() -> Mapping[str, Family]:
    """The family of each name space, by the name of its kind."""
    return {kind.name: kind.family for kind in kinds().values() if not kind.of}


@functools.cache
def holdable() -> tuple[str, ...]:
    """The name spaces of which there is something to free."""
    return tuple(name for name, family in families().items() if family.can_be_held)


@functools.cache
def forcible() -> tuple[str, ...]:
    """The same, and the name spaces that an operator may reset if the kind is named."""
    return tuple(name for name, family in families().items() if family.can_be_forced)
