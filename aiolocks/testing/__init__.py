"""A real server for tests of code that uses locks. `aiolocks.testing.plugin` has pytest fixtures."""

from .errors import ServerStartError
from .held import HeldLease, held
from .process import ServerState
from .server import EmbeddedServer

__all__ = ["EmbeddedServer", "HeldLease", "ServerStartError", "ServerState", "held"]
