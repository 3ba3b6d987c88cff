#!/usr/bin/env bash
# pyrate-limiter: how fast tasks that wait are admitted.
#
# Guess: with one permit each 50 ms, 40 tasks that wait are through after about 2 s: the limiter knows when each
#   moment comes, and sleeps until then.
# So it is: each sleep is 50 ms longer than that (`buffer_ms`, "to account for clock drift"), and a moment that was
#   slept through is lost: the tasks go through at half the rate of the limit, after 4 s. With `buffer_ms=0` it is 2 s.
# Versions: pyrate-limiter 4.5.1, Python 3.11.7.
# Output seen:
#   pyrate-limiter 4.5.1
#   by default: 40 tasks through after 4.0 s
#   buffer_ms=0: 40 tasks through after 2.0 s
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install -qq pyrate-limiter==4.5.1
"$directory/venv/bin/python" - <<'PROGRAM'
import asyncio
import sys
import time
from importlib.metadata import version

from pyrate_limiter import Limiter, Rate, StateBucket


async def through(**options: int) -> float:
    limiter = Limiter(StateBucket([Rate(1, 50)]), **options)
    began = time.monotonic()
    await asyncio.gather(*(limiter.try_acquire_async("a", blocking=True) for _ in range(40)))
    limiter.close()
    return time.monotonic() - began


async def main() -> int:
    default, none = await through(), await through(buffer_ms=0)
    print(f"by default: 40 tasks through after {default:.1f} s")
    print(f"buffer_ms=0: 40 tasks through after {none:.1f} s")
    return not (default > 3.4 and default > 1.4 * none)


print("pyrate-limiter", version("pyrate-limiter"))
sys.exit(asyncio.run(main()))
PROGRAM
