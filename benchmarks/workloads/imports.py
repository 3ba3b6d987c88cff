"""The time that importing aiolocks adds to the start of a program that uses redis-py."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..model import FLOOR, Figure, Sample
from ..settings import Address
from ..targets import above
from .base import Measure, Workload

_MODULES = {FLOOR: "redis.asyncio", "aiolocks": "aiolocks"}
_PROGRAM = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


class Import(Workload):
    """Fresh interpreters."""

    name = "import"
    one_server = "none takes part"
    usual_rounds = 9  # many: they are short
    work = "import aiolocks, in a fresh interpreter"
    floor = "import redis.asyncio"
    figures = (Figure("milliseconds", "ms", 1),)
    targets = (above(30, "milliseconds", "≤ 30 ms above import redis.asyncio", of=FLOOR),)

    @property
    def contenders(self) -> Sequence[str]:
        """With and without."""
        return tuple(_MODULES)

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """A cache of bytecode for both: pip compiles what it installs, and a checkout may not be compiled."""
        path = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        with TemporaryDirectory() as cache:
            environment = os.environ | {"PYTHONPATH": path, "PYTHONPYCACHEPREFIX": cache}
            environment.pop("PYTHONDONTWRITEBYTECODE", None)

            async def measure(contender: str) -> Sample:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-c", _PROGRAM.format(_MODULES[contender]),
                    env=environment, stdout=PIPE,
                )  # fmt: skip
                output, _ = await process.communicate()
                return Sample({"milliseconds": float(output) * 1000})

            await measure("aiolocks")  # which imports all that the other does
            yield measure
