"""The renewed tokens of a client's credentials, for connections that a session has made beside its pool.

A streaming provider of redis-py (from 5.3 on) has one listener: the client, which hands each new token to
`re_auth_callback` of its pool. A session hears of the token there, too. Other providers do not tell of a new
token, and neither redis-py nor a session asks them before the next connection. The nodes of a cluster cannot
be listened to in this way.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, final

import redis.credentials

from .._tasks import empty_context

_STREAMING: Final[Any] = getattr(redis.credentials, "StreamingCredentialProvider", ())
_HEARD_BY: Final = "re_auth_callback"

OnToken = Callable[[tuple[str, ...]], object]
_Follower = tuple[asyncio.AbstractEventLoop, weakref.WeakMethod[OnToken]]

_one_at_a_time = threading.Lock()


def follow(pool: Any, loop: asyncio.AbstractEventLoop, on_token: OnToken) -> None:
    """Tells of each token with which the connections of a pool authenticate from now on.

    Args:
        pool: The client's.
        loop: Where it is told, whatever loop or thread renews the token.
        on_token: A method, which is not kept alive; given the arguments of `AUTH`.
    """
    if not isinstance(pool.connection_kwargs.get("credential_provider"), _STREAMING):
        return
    with _one_at_a_time:
        heard = vars(pool).get(_HEARD_BY)
        if not isinstance(heard, _Renewals):
            heard = vars(pool)[_HEARD_BY] = _Renewals(pool)
        heard.followers = [*heard.living(), (loop, weakref.WeakMethod(on_token))]


@final
class _Renewals:
    """Stands for `re_auth_callback` of one pool."""

    def __init__(self, pool: Any) -> None:
        self._pool = weakref.ref(pool)
        self.followers: list[_Follower] = []

    def living(self) -> list[_Follower]:
        return [(loop, method) for loop, method in self.followers if method() and not loop.is_closed()]

    async def __call__(self, token: Any) -> None:
        user = token.try_get("oid")  # as redis-py does
        words = (*([user] if user else []), token.get_value())
        for loop, method in self.living():
            with suppress(RuntimeError):  # the loop of another thread has just been closed
                loop.call_soon_threadsafe(_tell, method, words, context=empty_context())
        pool: Any = self._pool()
        if pool is not None:
            await getattr(type(pool), _HEARD_BY)(pool, token)


def _tell(method: weakref.WeakMethod[OnToken], words: tuple[str, ...]) -> None:
    on_token = method()
    if on_token is not None:
        on_token(words)
