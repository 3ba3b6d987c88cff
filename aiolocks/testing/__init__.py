"""For tests of code that locks: a real server of one's own. `aiolocks.testing.plugin` has pytest fixtures."""

from .errors import ServerStartError
from .process import ServerState
from .server import EmbeddedServer

__all__ = ["EmbeddedServer", "ServerStartError", "ServerState"]
