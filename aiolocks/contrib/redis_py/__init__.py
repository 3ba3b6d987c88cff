"""A lock that is redis-py's, on the server and for its users, without what goes wrong with that one."""

from __future__ import annotations

from .lock import Lock

__all__ = ["Lock"]
