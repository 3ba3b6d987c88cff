"""Where a run takes place. Nothing that names the machine: figures are about its kind."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from redis.asyncio import Redis

from aiolocks.testing import EmbeddedServer

from .servers import executables
from .settings import LoopName

_DISTRIBUTIONS = (
    "aiolocks",
    "redis",
    "hiredis",
    "pottery",
    "coredis",
    "python-redis-lock",
    "cashews",
    "uvloop",
)


async def describe(loop: LoopName, servers: Sequence[str]) -> dict[str, str]:
    """The facts that a reader of the figures needs."""
    facts = {
        "Date": today(),
        "Processor": f"{_processor()}, {os.cpu_count()} cores",
        "System": _system(),
        "Servers": ", ".join([await _version(name) for name in servers]),
        "Python": f"{platform.python_implementation()} {platform.python_version()}, event loop of {loop}",
    }
    for name in _DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            facts[name] = version(name)
    return facts


def today() -> str:
    """The date."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


def command(arguments: Sequence[str]) -> str:
    """How it was called, without the directories of this machine."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in arguments]
    return shlex.join(["python", "-m", "benchmarks", *words])


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _system() -> str:
    release = ".".join(platform.release().split("-")[0].split(".")[:2])
    with suppress(OSError):
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {platform.system()} {release}"
    return f"{platform.system()} {release}"


async def _version(server: str) -> str:
    async with EmbeddedServer(executable=executables()[server]) as running:
        client: Redis = running.client()
        facts = await client.info("server")
    if "valkey_version" in facts:
        return f"Valkey {facts['valkey_version']}"
    return f"Redis {facts['redis_version']}"
