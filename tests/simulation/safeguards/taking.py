"""How a piece of code is taken out for a while."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from aiolocks.transport.request import Script
from aiolocks.transport.steps.family import kinds


@dataclass(frozen=True)
class Safeguard:
    """One piece of code.

    Attributes:
        what: The purpose.
        taken_out: Inside, the code is without it.
        kinds: Those of whose schedules one should fail without it.
        faulty: Whether that takes a fault.
        sorts: Of faults, the only ones that its schedules have; empty: all.
        covered_by: Another safeguard that does the same in another way, or a little later. It is taken out
            too, also where a schedule shows that all goes well with this one.
        unseen: Why no schedule can fail without it, if that is so.
    """

    what: str
    taken_out: Callable[[], AbstractContextManager[None]]
    kinds: tuple[str, ...]
    faulty: bool = False
    sorts: tuple[str, ...] = ()
    covered_by: str = ""
    unseen: str = ""


def scripts() -> list[Script]:
    """All scripts of the library, also in the form for a cluster."""
    kinds()  # imports all that have any
    modules = [module for name, module in sys.modules.items() if name.startswith("aiolocks.")]
    plain = [one for module in modules for one in vars(module).values() if type(one) is Script]
    found = {id(one): one for script in plain for one in (script, script.guarded)}
    return list(found.values())


def lua(*names: str, without: str, instead: str = "") -> Callable[[], AbstractContextManager[None]]:
    """A line of the scripts of these names (which may be beginnings of names), or of what stands before
    them."""

    @contextmanager
    def taken_out() -> Iterator[None]:
        changed = [
            (script, script.text, script.sha)
            for script in scripts()
            if script.name.startswith(names) and without.encode() in script.text
        ]
        assert changed, f"{names}: there is no {without!r}"
        try:
            for script, text, _ in changed:
                script.text = text.replace(without.encode(), instead.encode())
                script.sha = hashlib.sha1(script.text, usedforsecurity=False).hexdigest().encode()
            yield
        finally:
            for script, text, sha in changed:
                script.text, script.sha = text, sha

    return taken_out


def python(where: str, *, without: str, instead: str = "") -> Callable[[], AbstractContextManager[None]]:
    """A piece of a method, `where` as `lock.queue:Gate.granted`."""

    @contextmanager
    def taken_out() -> Iterator[None]:
        module_name, _, path = where.partition(":")
        module = importlib.import_module(f"aiolocks.{module_name}")
        *owners, name = path.split(".")
        owner: Any = module
        for part in owners:
            owner = getattr(owner, part)
        original = vars(owner)[name]
        source = textwrap.dedent(inspect.getsource(getattr(original, "fget", original)))  # of a property
        assert without in source, f"{where}: there is no {without!r}"
        made: dict[str, Any] = {}
        code = compile(
            "from __future__ import annotations\n" + source.replace(without, instead), where, "exec"
        )
        exec(code, vars(module), made)
        setattr(owner, name, made[name])
        try:
            yield
        finally:
            setattr(owner, name, original)

    return taken_out


def together(
    *several: Callable[[], AbstractContextManager[None]],
) -> Callable[[], AbstractContextManager[None]]:
    """Pieces that are one safeguard."""

    @contextmanager
    def taken_out() -> Iterator[None]:
        with ExitStack() as stack:
            for one in several:
                stack.enter_context(one())
            yield

    return taken_out


LOCKS = ("lock",)
FAIR = ("fairlock", "fair-semaphore")
PERMITS = ("semaphore", "fair-semaphore", "fairlock")
SPANS = ("rwlock", "rangelock")
ALL = ("lock", "semaphore", "rwlock")
