"""Safeguards of the search for deadlocks, each as a piece of code that can be taken out."""

from __future__ import annotations

from .taking import Safeguard, python

_KINDS = ("rings",)

OF_DEADLOCKS: dict[str, Safeguard] = {
    "deadlocks: looked for": Safeguard(
        "A task that waits while it holds something is published.",
        python(
            "inspect.detector:Detector._publish",
            without="if acquisition.started <= patient:",
            instead="if False:",
        ),
        _KINDS,
    ),
    "deadlocks: read on the server": Safeguard(
        "The locks that tasks hold, and whether these are in the way of others, are read on the server.",
        python(
            "inspect.deadlocks:Look.__init__",
            without="stuck(waits, occupants)",
            instead="may_wait_for(waits)",
        ),
        _KINDS,
    ),
    "deadlocks: free permits": Safeguard(
        "A permit that any task gives back will do.",
        python(
            "inspect.knots:_in_the_way",
            without="number - taken < want.permits <= number",
            instead="want.permits <= number",
        ),
        _KINDS,
    ),
    "deadlocks: behind a writer": Safeguard(
        "A reader waits for the tasks that keep out the writer before it.",
        python(
            "inspect.knots:_in_the_way",
            without="found.update(_behind_writers(want, those_there, there))",
            instead="pass",
        ),
        _KINDS,
    ),
    "deadlocks: a writer between lives": Safeguard(
        "A writer that holds nothing is part of a deadlock only if it has said since that it waits.",
        python(
            "inspect.knots:Occupants.of_waiters",
            without="if counts(one.bell, one.until_ms)",
        ),
        _KINDS,
        faulty=True,
        sorts=("kill",),
    ),
    "deadlocks: one gives way": Safeguard(
        "The youngest waiter gets an error.",
        python("inspect.detector:Detector._tell", without="acquisition.end_with(error)", instead="pass"),
        _KINDS,
    ),
    "deadlocks: goes on": Safeguard(
        "A search that the server has refused, as one out of memory does, is taken up again.",
        python(
            "inspect.detector:Detector._failed",
            without="self._rest(_REFUSED)",
            instead="self._rest(1e9)",
        ),
        _KINDS,
        faulty=True,
        sorts=("out of memory",),
    ),
}
