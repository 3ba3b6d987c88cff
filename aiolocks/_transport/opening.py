"""A client from a URL, for who has nothing else."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis


def open_client(url: str) -> Any:
    """The client that redis-py makes of a URL: `redis://`, `rediss://` or `unix://`. No I/O.

    Raises:
        ValueError: It is no such URL.
    """
    try:
        return Redis.from_url(url)
    except ValueError:
        # Not its text: of a URL that was taken apart wrongly, that may quote the password.
        raise ValueError("this is not a URL of a Redis server: redis://, rediss:// or unix://") from None
