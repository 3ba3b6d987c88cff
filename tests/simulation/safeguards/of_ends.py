"""Safeguards of the end of a session, each as a piece of code that can be taken out."""

from __future__ import annotations

from .taking import Safeguard, python

_KINDS = ("session",)
_JUDGED = "return all(task is None or task.done() or task is closer for task in tasks)"

OF_ENDS: dict[str, Safeguard] = {
    "session: a task that still works keeps its lock": Safeguard(
        "A session that closes releases nothing under which a task may still work.",
        python("lock.lease:Possession.left_by", without=_JUDGED, instead="return True"),
        _KINDS,
    ),
    "session: what no code works under is given back": Safeguard(
        "A session that closes releases what a task has left, or what it has itself that closes the session.",
        python("lock.lease:Possession.left_by", without=_JUDGED, instead="return False"),
        _KINDS,
    ),
}
