"""How far it is: one line on a terminal's stderr, nothing elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Self

_WIDTH = 24


class Progress:
    """A bar over all workloads."""

    def __init__(self, workloads: int) -> None:
        self._workloads = workloads
        self._finished = 0
        self._began = time.monotonic()
        self._shown = sys.stderr.isatty()

    def at(self, workload: str, contender: str, done: float) -> None:
        """This contender's turn."""
        share = (self._finished + done) / self._workloads
        bar = "█" * round(share * _WIDTH)
        seconds = time.monotonic() - self._began
        self._show(f"{bar:░<{_WIDTH}} {share:4.0%} {seconds:4.0f} s  {workload}: {contender}")

    def finished(self) -> None:
        """One workload has been done."""
        self._finished += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._show("")

    def _show(self, line: str) -> None:
        if self._shown:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{line[:width]}", end="", file=sys.stderr, flush=True)
