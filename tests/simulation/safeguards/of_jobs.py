"""Safeguards of jobs, each as a piece of a script that can be taken out."""

from __future__ import annotations

from .taking import Safeguard, lua

OF_JOBS: dict[str, Safeguard] = {
    "jobs: a ticket takes no place": Safeguard(
        "No call is a duplicate of a waiter with a ticket, which may have nothing to run.",
        lua("job_acquire", without="if ticket ~= '' then return 't', {} end"),
        ("uniquejob",),
    ),
}
