"""What waits for a clock, with each kind: by the clock of the simulated world; on a real server, with one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aiolocks import Session
from tests.conformance import (
    test_acquire,
    test_annotate,
    test_at_least,
    test_cancel,
    test_contexts,
    test_in_the_way,
    test_loss,
    test_unconfirmed,
)
from tests.conformance.conftest import CONFORMS, KEEPING, Kind, wakeup_of
from tests.simulation import place
from tests.support.masters import open_three

MODULES = (
    test_acquire,
    test_annotate,
    test_at_least,
    test_cancel,
    test_contexts,
    test_in_the_way,
    test_loss,
    test_unconfirmed,
)


def timed() -> Iterator[Any]:
    """Each test with that marker and each kind. Of a thin one, a kind has one row by default."""
    for module in MODULES:
        for name, test in vars(module).items():
            marks = {mark.name for of in (module, test) for mark in place.marks_of(of)}
            if not (name.startswith("test_") and "timed" in marks):
                continue
            rows = place.rows_of(test)
            for nth, (kind, way) in enumerate(_ways(module)):
                for number, given in enumerate(rows):
                    label = "-".join([name.removeprefix("test_"), str(kind), way, *place.label(given)])
                    more = [pytest.mark.more] if "thin" in marks and number != nth % len(rows) else []
                    yield pytest.param(test, kind, way, given, id=label, marks=more)


def _ways(module: Any) -> list[tuple[Kind, str]]:
    """No test here looks at several servers: a way of a cluster is that wakeup on one server."""
    kinds, number = (KEEPING, None) if module is test_at_least else (CONFORMS, 1)
    return [
        (kind, way)
        for kind in kinds
        for way in dict.fromkeys(one.removeprefix("cluster-") for one in kind.ways[:number])
    ]


@pytest.mark.parametrize(("test", "kind", "way", "given"), [*timed()])
def test_in_the_world(
    test: Callable[..., Any],
    kind: Kind,
    way: str,
    given: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kind.masters > 1:
        monkeypatch.setattr("aiolocks.lock.session.open_transport", open_three)
    monkeypatch.setitem(Session.__init__.__kwdefaults__, "wakeup", wakeup_of(way))
    fixtures = {"kind": kind, "way": way, "transport": way, "caplog": caplog, "monkeypatch": monkeypatch}
    place.run(test, plain=way == "plain", **fixtures, **given)
