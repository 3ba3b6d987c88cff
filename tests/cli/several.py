"""Several command lines, one after the other, in this process where they take no signals."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

from aiolocks.cli import main
from tests.cli.conftest import Aiolocks, Ended

_OWN_PROCESS = {"run", "top", "ui"}
"""Commands that handle signals, which only the main thread of a process can."""


def called(words: tuple[str, ...], environment: dict[str, str]) -> Ended:
    """How `main` ends in this process, in a pipe; `python -m aiolocks` calls nothing else."""
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    out = io.TextIOWrapper(io.BytesIO(), encoding)
    err = io.TextIOWrapper(io.BytesIO(), encoding, "backslashreplace")
    status: Any = 0
    with (
        patch.dict(os.environ, environment),
        patch.object(sys, "argv", ["aiolocks", *words]),
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO())),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
        out.flush()
        err.flush()
    said = (stream.buffer.getvalue().decode(encoding) for stream in (out, err))
    return Ended(status, *said)


async def several(
    aiolocks: Aiolocks,
    *commands: tuple[str, ...],
    url: str | None = None,
    environment: dict[str, str] | None = None,
    terminal: bool = False,
) -> list[Ended]:
    """How each of them ended."""
    given = {**aiolocks.environment(url), **(environment or {})}
    ends = []
    for words in commands:
        if terminal or words[0] in _OWN_PROCESS:
            started = await aiolocks(*words, url=url, environment=environment, terminal=terminal)
            ends.append(await started.end(within=60))
        else:
            ends.append(await asyncio.to_thread(called, words, given))
    return ends


async def alone(aiolocks: Aiolocks, *words: str, **kwargs: Any) -> Ended:
    """How one command line ended."""
    (ended,) = await several(aiolocks, words, **kwargs)
    return ended
