"""Where the server runs.

On a machine of few cores the scheduler puts a client and its server now on one core, now on two, and stays
with it for minutes. A round trip takes 25 µs on one and 70 µs on two: no median helps against that. Two is
what a server elsewhere is like.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def apart(server: int) -> Iterator[None]:
    """Gives the server of this process id a core of its own, as long as it is entered; where that can be."""
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        yield
        return
    cores = os.sched_getaffinity(0)
    its = {max(cores)}
    for thread in Path(f"/proc/{server}/task").iterdir():
        os.sched_setaffinity(int(thread.name), its)
    os.sched_setaffinity(0, cores - its)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
