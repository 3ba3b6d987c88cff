"""One worker process: `python -m benchmarks.worker`, started by `crew`.

Jobs come on stdin, one JSON object a line; what they say goes to stdout. Times are those of `time.monotonic`,
which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from .contenders import TTL, Arena
from .desk import Desk
from .settings import Address, loop_factory


async def _work(address: Address, ttl: int) -> None:
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with Arena(address, ttl=ttl) as arena:
        desk = Desk(lines, arena)
        while True:
            try:
                order = await desk.hear()
            except EOFError:
                return
            try:
                desk.say(await _job(order["job"])(desk, **order["arguments"]))
            except Exception as error:  # noqa: BLE001 - whatever it is, the benchmark says it
                print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)


def _job(name: str) -> Callable[..., Awaitable[Any]]:
    module, _, function = name.partition(":")
    job: Callable[..., Awaitable[Any]] = getattr(importlib.import_module(module), function)
    return job


def main() -> None:
    """Does what it is told, until its input ends."""
    arguments = json.loads(sys.argv[1])
    with asyncio.Runner(loop_factory=loop_factory(arguments["loop"])) as runner:
        runner.run(_work(Address(**arguments["address"]), arguments["ttl"] or TTL))


if __name__ == "__main__":
    main()
