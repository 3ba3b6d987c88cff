"""The requests that the library itself sends for a lock, for the floor to send them by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aiolocks import Lock, Session

from .contenders import TTL

Words = Sequence[bytes | str | int]


async def requests_for(client: Any, names: Sequence[str]) -> list[tuple[Words, Words]]:
    """The requests that acquire and that release each of these names, by digests that the server knows."""
    async with Session(client) as session:
        async with Lock(session, "warm-up", ttl=TTL):
            pass
        sent = _record(session)
        for name in names:
            async with Lock(session, name, ttl=TTL):
                pass
    assert len(sent) == 2 * len(names), "a lock that nobody else wants is two requests"
    return list(zip(sent[::2], sent[1::2], strict=True))


def _record(session: Session) -> list[Words]:
    """The requests that the session sends from now on.

    NOTE: it looks inside, so that the floor is always made of the library's very own requests.
    """
    engine: Any = session._usable_engine()  # noqa: SLF001
    send: Callable[..., None] = engine.send
    sent: list[Words] = []

    def record(call: Any, **options: bool) -> None:
        sent.append(call.words())
        send(call, **options)

    engine.send = record
    return sent
