"""PgBouncer, where it is installed, in front of PostgreSQL: transactions of many clients, few connections."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

CONNECTIONS = 2
"""How many connections PostgreSQL has for all clients."""


@contextlib.contextmanager
def running_pgbouncer(postgres: str) -> Iterator[str]:
    """A pooler of transactions; gives the directory of its socket. Skips the test where there is none.

    Args:
        postgres: The directory of the socket of PostgreSQL.
    """
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed (apt-get install pgbouncer)")
    with tempfile.TemporaryDirectory(prefix="aiolocks-pgb-") as directory:
        settings = Path(directory) / "pgbouncer.ini"
        settings.write_text(f"""
[databases]
* = host={postgres} user=postgres
[pgbouncer]
listen_addr =
unix_socket_dir = {directory}
listen_port = 5432
auth_type = any
pool_mode = transaction
default_pool_size = {CONNECTIONS}
ignore_startup_parameters = extra_float_digits
""")
        user = None
        if os.geteuid() == 0:  # as which it refuses to run, as PostgreSQL does
            user = Path(postgres).owner()
            shutil.chown(directory, user)
        with (Path(directory) / "log").open("w") as log:
            process = subprocess.Popen([program, str(settings)], user=user, stdout=log, stderr=log)
            try:
                _wait_for(f"{directory}/.s.PGSQL.5432", process, Path(log.name))
                yield directory
            finally:
                process.kill()
                process.wait()


def _wait_for(path: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until and process.poll() is None:
        with socket.socket(socket.AF_UNIX) as tried, contextlib.suppress(OSError):
            tried.connect(path)
            return
        time.sleep(0.01)
    raise AssertionError(f"pgbouncer does not listen: {log.read_text()}")
