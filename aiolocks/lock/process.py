"""Which process this is, without asking the kernel each time: leases and sessions do not outlive a fork."""

from __future__ import annotations

import os

pid = os.getpid()


def _forked() -> None:
    global pid  # noqa: PLW0603 - the one thing that a fork changes
    pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def current_pid() -> int:
    return pid
