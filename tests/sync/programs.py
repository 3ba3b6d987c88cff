"""Programs that tests start: what a signal, a fork or an exit does to a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]

HEAD = """
import os, signal, sys, threading, time
from aiolocks.sync import Session
url = sys.argv[1]
locks = Session.from_url(url, prefix="shop")
def say(*words):
    print(*words, flush=True)
"""


def start(program: str, url: str) -> subprocess.Popen[str]:
    """A process that runs it, after `HEAD`."""
    return subprocess.Popen(
        [sys.executable, "-W", "error::ResourceWarning", "-c", HEAD + textwrap.dedent(program), url],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(program: str, url: str, *, code: int = 0) -> str:
    """What it prints; it ends with that code."""
    process = start(program, url)
    try:
        printed, errors = process.communicate(timeout=50)
    finally:
        process.kill()
    assert process.returncode == code, f"{process.returncode}\n{printed}\n{errors}"
    return printed
