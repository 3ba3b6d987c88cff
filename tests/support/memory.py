"""The memory of this process."""

from __future__ import annotations

import os
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


def megabytes() -> float:
    """Resident set."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20
