"""Single flight: many want it, one makes it, all have it."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, Never, TypeVar, final

from .._core.arguments import (
    SHORTEST_TTL,
    Options,
    Seconds,
    lock_name,
    optional_seconds,
    reject_slips,
    seconds,
)
from .._core.clock import milliseconds
from .._core.session import engine_of, source_of
from ..errors import FingerprintError
from .flights import Flight
from .serializers import JSON, Serializer
from .turn import Crowd, Turn

T = TypeVar("T")

_DIGEST_BYTES: Final = 16

# What the same thing is called elsewhere, or what is easily taken for it.
_SLIPS: Final = {
    "blocking_timeout": "do(key, fn, blocking_timeout=...), or asyncio.timeout() around do()",
    "cache": "keep= (how long a value is kept)",
    "cache_ttl": "keep= (how long a value is kept)",
    "ex": "keep= (how long a value is kept)",
    "expire": "keep= (how long a value is kept)",
    "key": "do(key, fn): one SingleFlight serves any number of keys",
    "lease": "ttl= (how long a runner that died holds up the others)",
    "max_age": "keep= (how long a value is kept)",
    "name": "do(key, fn): one SingleFlight serves any number of keys",
    "prefix": "Session(client, prefix=...)",
    "timeout": "ttl= (how long a runner that died holds up the others), or asyncio.timeout() around do()",
    "wait": "do(key, fn, blocking_timeout=...), or asyncio.timeout() around do()",
}


@final
class SingleFlight:
    """One caller makes it, all callers have it: among all processes that use the same server and prefix.

    ```python
    flight = SingleFlight(redis)

    async def price(city):
        return await flight.do(f"price:{city}", lambda: ask_slow_service(city))
    ```

    However many tasks and processes ask for one key at the same time, the function runs once, and all have
    its value or its error. With `keep`, the value is also there for those who come later: an idempotency key.

    The function runs in a task of the session, in the context of its first caller here, and not in the
    caller's own task. So a cancelled caller ends only his own wait; when nobody in this process waits any
    more, the work is cancelled, and somebody who waits elsewhere does it at once. A runner that has died is
    replaced when its lease ends.

    Each run holds a lease, renewed while it lives. If that is lost the function is cancelled, and the call
    tries again: as a rule another has run it meanwhile. So the function may run more than once, as everything
    that survives a crash does; what only the last of them may write, it writes with a fencing token: see
    `turn`.

    A `SingleFlight` is a description: cheap, immutable, for any number of keys and tasks.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        ttl: Seconds that the lease of a run lasts without a renewal, 50 ms to ten years: for so long a runner
            that died holds up the others. No limit to how long a run may take.
        keep: Seconds for which a value is kept, from when it was there; 0 gives it to those alone who were
            waiting. Errors are not kept. If a value cannot be kept, the server keeps for as long that the
            work was done: see `ResultNotKeptError`. The runner's own `keep` counts.
        serializer: How values travel to other processes: an object with `dumps` and `loads`. JSON needs no
            trust in who else can write to the server; pickle would. It is asked when the function has ended:
            only the value itself shows whether it can be written.

    Raises:
        TypeError, ValueError: An argument is not as it should be; before any I/O.
    """

    __slots__ = ("__weakref__", "_keep_ms", "_options", "_serializer", "_source")

    def __init__(
        self,
        client: Any,
        *,
        ttl: Seconds = 30.0,
        keep: Seconds = 0.0,
        serializer: Serializer = JSON,
        **slips: Never,
    ) -> None:
        reject_slips("SingleFlight", slips, _SLIPS)
        self._source = source_of(client)
        self._options = Options.checked(
            ttl=seconds("ttl", ttl, least=SHORTEST_TTL),
            blocking_timeout=None,
            auto_renew=True,
            max_hold=None,
            on_lost="cancel",
            metadata=None,
        )
        kept = seconds("keep", keep)
        self._keep_ms = milliseconds(kept) if kept else 0
        for function in ("dumps", "loads"):
            if not callable(getattr(serializer, function, None)):
                raise TypeError(
                    f"serializer must have dumps and loads, as aiolocks.JSON has, not {serializer!r}"
                )
        self._serializer = serializer

    async def do(
        self,
        key: str,
        fn: Callable[[], Awaitable[T]],
        *,
        fingerprint: str | bytes | None = None,
        blocking_timeout: Seconds | None = None,
    ) -> T:
        """Gives what `fn` gives, or raises what it raises, whoever has called it.

        Where the call was made in this session, by whichever `SingleFlight`, all who wait here get the very
        object, and joining costs no request. From elsewhere comes what the serializer makes of it, and an
        error as `RemoteCallError`.

        Args:
            key: Any non-empty str of at most 1 KiB in UTF-8.
            fn: A function without arguments that gives an awaitable, as a coroutine function does. If a
                `CancelledError` comes out of it by itself, all callers get a `RuntimeError`.
            fingerprint: What the request is, for a key that a client chose: the body of a POST. Only a hash
                of it is stored. None is a fingerprint like another: give it always or never.
            blocking_timeout: Seconds to wait for the run of another caller, from the moment at which this
                session knows that the run goes on; 0 ends the call at that moment. A value that is kept is
                returned all the same, and the time that `fn` takes does not count. None waits for as long
                as the run takes.

        Raises:
            LockTimeoutError: The run of another caller did not end within `blocking_timeout`; this call has
                not run `fn`.
            FingerprintError: The key is in use, or its value kept, for another fingerprint.
            RemoteCallError: The function raised, elsewhere.
            ResultNotKeptError: The work was done, but others cannot have its value: the serializer did not
                take it, or Redis refused it (as larger than its `proto-max-bulk-len`), or did not take it in
                time. With `keep`, also callers in the session that ran it get this error, with its value;
                others get it for as long as `keep`, and the function does not run again. Without `keep`
                callers in that session get the value, and the error is for waiters elsewhere. If
                Redis could not even be told that the work was done, the error says that a new call may do it
                again.
            LockLostError: The lease was lost three times, each time while the function ran.
            BackendError: Redis refused for good, or gave no answer at all for `ttl` seconds. Not once the
                function has ended: then its callers here get its value, with `keep` as the value of a
                `ResultNotKeptError`, and the log says that nobody else was told.
            SessionClosedError: The session is closed, or was closed meanwhile.
            RuntimeError: It would wait for itself: asked by the function, or by a task or call that it began.
            TypeError, ValueError: An argument is not as it should be; before any I/O.

        Cancelled, it ends at once. The function goes on while others wait for it here, and is cancelled
        otherwise. A value that is to be kept is published also when no caller waits any more. Limit the wait
        with `asyncio.timeout()`.
        """
        name = lock_name(key, "key")
        _check_function(fn)
        digest = _digest(fingerprint)
        limit = optional_seconds("blocking_timeout", blocking_timeout)
        engine = engine_of(self._source, self)
        slot = ("singleflight", name)
        while True:
            flight: Flight | None = engine.shared.get(slot)
            if flight is None:
                flight = Flight(
                    engine,
                    slot,
                    name,
                    fn,
                    options=self._options,
                    keep_ms=self._keep_ms,
                    serializer=self._serializer,
                    fingerprint=digest,
                )
            elif flight.fingerprint != digest:
                raise FingerprintError(name)
            outcome = await flight.join(fn, limit)
            if outcome is not None:
                value: T = outcome.get()
                return value
            engine.admit()

    def turn(self, key: str) -> Turn:
        """Whether to do the work oneself, or another has just done it: for work whose result lies elsewhere.

        ```python
        async with flight.turn("cache:warm") as turn:
            if turn.first:
                await warm_the_cache()
        ```

        One enters with `turn.first`. Who waits meanwhile, here or elsewhere, enters when that one leaves:
        with `turn.first` False, and all at once, if the body ended well; if it raised, was cancelled, or lost
        its lease, the next one is the first. Who comes later begins anew. A turn knows nothing of a `do` with
        the same key.

        Args:
            key: Any non-empty str of at most 1 KiB in UTF-8.

        Raises:
            TypeError, ValueError: The key is not as it should be.
            DeadlockError: On entering: this very task is first, and would wait for itself.
            LockLostError: On leaving: the lease was lost, and the body of the first was cancelled.
            BackendError: On entering: Redis refused for good, or gave no answer for `ttl` seconds. On
                leaving: the end was not confirmed.
            SessionClosedError: On entering: the session is closed, or was closed meanwhile.

        Cancelled at any point, nothing stays held, and whoever waits behind goes on.
        """
        name = lock_name(key, "key")
        return Turn(functools.partial(self._crowd, name))

    def _crowd(self, name: str) -> Crowd:
        engine = engine_of(self._source, self)
        slot = ("turn", name)
        crowd: Crowd | None = engine.shared.get(slot)
        return Crowd(engine, slot, name, self._options) if crowd is None else crowd

    def __repr__(self) -> str:
        return f"<SingleFlight ttl={self._options.ttl:g} keep={self._keep_ms / 1000:g}>"


def _check_function(fn: object) -> None:
    if not callable(fn):
        made = inspect.isawaitable(fn)
        hint = ": give fn itself, not what calling it gives; lambda: fn(…) for arguments" if made else ""
        raise TypeError(f"fn must be a coroutine function, not {type(fn).__name__}{hint}")


def _digest(fingerprint: object) -> str:
    """What is stored of a fingerprint: not the request itself."""
    if fingerprint is None:
        return ""
    if isinstance(fingerprint, str):
        fingerprint = fingerprint.encode(errors="surrogatepass")
    if not isinstance(fingerprint, bytes):
        raise TypeError(f"fingerprint must be str, bytes or None, not {type(fingerprint).__name__}")
    return hashlib.blake2b(fingerprint, digest_size=_DIGEST_BYTES).hexdigest()
