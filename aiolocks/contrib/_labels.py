"""How the name of a lock becomes the value of a label, and how finely time is measured.

There may be any number of names, and a monitoring system keeps a time series for each value of a label. So no
name becomes a label by itself: the user says which of them are alike.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, cast

from .._logs import get_logger
from ..lock import together

log = get_logger("aiolocks.metrics")

Names = Mapping[str, str] | Iterable[str] | Callable[[str], str | None]

OTHER: Final = "other"
"""The label of all names of which nothing is said."""

_PART: Final = re.compile(r"\*|\{\{|\}\}|\{[A-Za-z_]\w*\}|[{}]|[^*{}]+")


def labeller(names: Names | None, *, raw_names: bool) -> Callable[[str], str]:
    """The function that gives the label for a name, by the arguments of the listeners.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """
    if not isinstance(raw_names, bool):
        raise TypeError(f"raw_names must be a bool, not {raw_names!r}")
    if raw_names:
        if names is not None:
            raise ValueError("give either names or raw_names=True, not both")
        return _itself
    if names is None:
        return _other
    return _guarded(names) if callable(names) else _by_patterns(names)


def bounds(what: str, given: Sequence[float]) -> tuple[float, ...]:
    """The upper bounds of buckets, in seconds; checked.

    Raises:
        TypeError, ValueError: They are not numbers that rise.
    """
    values = _listed(given)
    if values is None or any(
        isinstance(value, bool) or not isinstance(value, (int, float)) for value in values
    ):
        raise TypeError(f"{what} must be numbers of seconds, not {given!r}")
    found = tuple(map(float, values))
    rising = all(left < right for left, right in pairwise(found))
    if not found or not rising or not all(map(math.isfinite, found)):
        raise ValueError(f"{what} must be finite numbers of seconds, at least one, that rise; not {given!r}")
    return found


def _listed(given: Any) -> list[Any] | None:
    """The items in it; None if it is not something that has several."""
    if isinstance(given, str):
        return None
    try:
        return list(given)
    except TypeError:
        return None


def _itself(name: str) -> str:
    return name


def _other(_: str) -> str:
    return OTHER


def _guarded(function: Callable[[str], str | None]) -> Callable[[str], str]:
    """The user's function; where it raises, or gives something else than a str or None, that is logged.

    A name must have the same label each time: a gauge goes up under one label, and down under the next.
    """

    def label(name: str) -> str:
        try:
            found: Any = function(name)
            if found is not None and not isinstance(found, str):
                raise TypeError(f"a label must be a str or None, not {found!r}")
        except Exception as error:  # noqa: BLE001 - it may raise anything
            together.tell(
                log,
                logging.ERROR,
                "no label for the lock %r: names= has raised, and the label is 'other'",
                name,
                name=repr(name),
                many="no label for %d events of locks: names= has raised %s, and the label is 'other': %s",
                why=type(error).__name__,
                key=(id(function), type(error)),
                error=error,
            )
            return OTHER
        return OTHER if found is None else found

    return label


def _by_patterns(names: Mapping[str, str] | Iterable[str]) -> Callable[[str], str]:
    # One expression for all of them: a name is looked at once, however many patterns there are.
    patterns = _listed(names)
    if patterns is None:
        raise TypeError(f"names must be patterns in a mapping or a list, or a function; not {names!r}")
    labelled: Mapping[Any, Any] = cast("Mapping[Any, Any]", names) if isinstance(names, Mapping) else {}
    pairs: dict[Any, Any] = {each: labelled.get(each, each) for each in patterns}
    for pattern, label in pairs.items():
        if not isinstance(pattern, str) or not isinstance(label, str):
            raise TypeError(f"names must be patterns and labels as str, not {pattern!r}: {label!r}")
    labels: list[str] = list(pairs.values())
    expression = "|".join(f"({_expression(pattern)})" for pattern in pairs) or "(?!)"
    matches = re.compile(expression, re.DOTALL).fullmatch

    def label_of(name: str) -> str:
        match = matches(name)
        return OTHER if match is None or match.lastindex is None else labels[match.lastindex - 1]

    return label_of


def _expression(pattern: str) -> str:
    """As a regular expression that never goes back over what it has matched: names may be a stranger's."""
    texts = [""]  # between one wildcard and the next
    for part in _PART.findall(pattern):
        if part in ("{", "}"):
            raise ValueError(
                f"a pattern has {{word}} for any text, and {{{{ and }}}} for braces; not {pattern!r}"
            )
        if part == "*" or (part[0] == "{" and part != "{{"):
            texts.append("")
        else:
            texts[-1] += {"{{": "{", "}}": "}"}.get(part, part)
    first, *rest = map(re.escape, texts)
    if not rest:
        return first
    *between, last = rest
    return first + "".join(f"(?>.*?{text})" for text in between if text) + ".*" + last
