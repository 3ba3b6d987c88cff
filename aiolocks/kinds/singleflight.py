"""Single flight: many want it, one makes it, all have it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Never, ParamSpec, TypeVar, final

from ..lock.acquirable import AS_CONFIGURED
from ..lock.naming import names_of_calls
from ..lock.options import Options, Seconds, lock_name, optional_seconds, reject_unknown
from ..lock.sources import engine_of, source_of
from .flightarguments import MEANT, check_function, digest_of
from .flights import share
from .keeping import Keeping
from .serializers import JSON, Serializer
from .turn import Turn, TurnGroup

P = ParamSpec("P")
T = TypeVar("T")


@final
class SingleFlight:
    """One caller runs the function, and all get its result: among all processes of one server and prefix.

    ```python
    flight = SingleFlight(redis)

    async def price(city):
        return await flight.do(f"price:{city}", lambda: ask_slow_service(city))
    ```

    However many tasks and processes ask for one key at the same time, the function runs once, and all have
    its value or its error. With `keep`, the value is also there for those who come later: an idempotency key,
    or a cache. As a decorator it takes the key from the arguments: see `__call__`.

    The function runs in a task of the session, in the context of its first caller here, and not in the
    caller's own task. So a cancelled caller ends only its own wait; when nobody in this process waits any
    more, the work is cancelled, and a caller that waits elsewhere does it at once. A runner that has died is
    replaced when its lease ends.

    Each run holds a lease, renewed while it lives. If that is lost the function is cancelled, and the call
    tries again: as a rule another has run it meanwhile. So the function may run more than once, as everything
    that survives a crash does; a write that only the last run may make needs a fencing token: see
    `turn`.

    A `SingleFlight` is a description: cheap, immutable, for any number of keys and tasks.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        ttl: Seconds that the lease of a run lasts without a renewal, 50 ms to ten years: for so long a runner
            that died holds up the others. No limit to how long a run may take.
        keep: Seconds for which a value is kept, from the end of the call that made it, however late the
            server hears of that; 0 gives it to those alone who were waiting. Errors are not kept. If the
            server's clock is set back, a value is kept for at most `keep` (and `stale`) from when a caller
            asks for it next. If a value cannot be kept, the server keeps for as long that the
            work was done: see `ResultNotKeptError`. The runner's own `keep` counts.
        stale: Seconds after `keep` for which the old value is still given, at once, while the session of one
            caller replaces it in the background; 0 lets the callers wait for the new one. Not for an
            idempotency key: the function runs again.
        early: A factor, 0 to 1000, for replacing a value before its end in the same way, at random. Each
            question draws a time, `-early * ln(uniform)` times the duration of the run that made the value,
            and a value that ends within that time is due. So costly values are replaced earlier, and hardly
            ever by two callers. 1 is right as a rule, more is earlier, 0 is never. The algorithm is XFetch:
            Vattani, Chierichetti and Lowenstein, "Optimal Probabilistic Cache Stampede Prevention",
            Proceedings of the VLDB Endowment 8 (8), 2015. The asker's own `early` counts.
        jitter: The share of `keep`, 0 to 1, by which it is shortened at most, at random for each value: what
            was made at the same time does not end at the same time.
        serializer: How values travel to other processes: an object with `dumps` and `loads`. JSON needs no
            trust in others that can write to the server; pickle would. It is asked when the function has
            ended: only the value itself shows whether it can be written.

    Raises:
        TypeError, ValueError: An argument is not as it should be; before any I/O.
    """

    __slots__ = ("__weakref__", "_keeping", "_options", "_serializer", "_source")

    def __init__(
        self,
        client: Any,
        *,
        ttl: Seconds = 30.0,
        keep: Seconds = 0.0,
        stale: Seconds = 0.0,
        early: float = 0.0,
        jitter: float = 0.0,
        serializer: Serializer = JSON,
        **unknown: Never,
    ) -> None:
        reject_unknown("SingleFlight", unknown, MEANT)
        self._source = source_of(client)
        self._options = Options.checked(ttl=ttl)
        self._keeping = Keeping().but(keep=keep, stale=stale, early=early, jitter=jitter)
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
        keep: Seconds = AS_CONFIGURED,
        stale: Seconds = AS_CONFIGURED,
        early: float = AS_CONFIGURED,
        jitter: float = AS_CONFIGURED,
    ) -> T:
        """Gives the result of `fn`, or raises its error, also if another caller has called it.

        Where the call was made in this session, by whichever `SingleFlight`, all who wait here get the very
        object, and joining costs no request. From elsewhere comes what the serializer makes of it, and an
        error as `RemoteCallError`; an `HTTPException` of FastAPI, Starlette or aiohttp as one with the same
        status, detail and headers, if the process has loaded one of them.

        A value that is due (`stale`, `early`) is returned at once, and replaced in the background. One
        session then runs its caller's `fn` in the background, also after that caller has gone; the end of
        the session ends it. If `fn` raises there, or the server refuses the new value, the log says so, and
        the old value stays until its end. For 1 s no session tries again; if the server could not be told, at
        least this one does not.

        Args:
            key: Any non-empty str of at most 1 KiB in UTF-8.
            fn: A function without arguments that gives an awaitable, as a coroutine function does. If a
                `CancelledError` comes out of it by itself, all callers get a `RuntimeError`.
            fingerprint: The content of the request, for a key that a client chose: the body of a POST. Only a
                hash of it is stored. None is a fingerprint like another: give it always or never.
            blocking_timeout: Seconds to wait for the run of another caller, from the moment at which this
                session knows that the run goes on; 0 ends the call at that moment. A value that is kept is
                returned all the same, and the time that `fn` takes does not count. None waits for as long
                as the run takes.
            keep: As of the `SingleFlight`, which gives the default; so for the others.
            stale: As of the `SingleFlight`.
            early: As of the `SingleFlight`.
            jitter: As of the `SingleFlight`.

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
                again. With `stale` or `early` it is a cache: see the decorator.
            LockLostError: The lease was lost three times, each time while the function ran.
            BackendError: Redis refused for good, or gave no answer at all for `ttl` seconds. Not once the
                function has ended: then its callers here get its value, with `keep` as the value of a
                `ResultNotKeptError`, and the log says that nobody else was told.
            SessionClosedError: The session is closed, or was closed meanwhile.
            RuntimeError: It would wait for itself: asked by the function, or by a task or call that it began.
            TypeError, ValueError: An argument is not as it should be; before any I/O.

        Cancelled, it ends at once. The function goes on while others wait for it here, and is cancelled
        otherwise. A value that must be kept is published also when no caller waits any more. Limit the wait
        with `asyncio.timeout()`.
        """
        return await self._do(
            key, fn, fingerprint, blocking_timeout, keep=keep, stale=stale, early=early, jitter=jitter
        )

    async def _do(
        self,
        key: str,
        fn: Callable[[], Awaitable[T]],
        fingerprint: str | bytes | None,
        blocking_timeout: Seconds | None,
        *,
        caches: bool = False,
        **times: Any,
    ) -> T:
        name = lock_name(key, "key")
        check_function(fn)
        digest = digest_of(fingerprint)
        limit = optional_seconds("blocking_timeout", blocking_timeout)
        keeping = self._keeping.but(**times)
        return await share(
            engine_of(self._source, self),
            name,
            fn,
            limit,
            options=self._options,
            keeping=keeping,
            serializer=self._serializer,
            fingerprint=digest,
            # An idempotency key is asked for by `do`, and never with these.
            spares=caches or keeping.stale > 0 or keeping.early > 0,
        )

    def __call__(
        self,
        key: str,
        *,
        blocking_timeout: Seconds | None = None,
        keep: Seconds = AS_CONFIGURED,
        stale: Seconds = AS_CONFIGURED,
        early: float = AS_CONFIGURED,
        jitter: float = AS_CONFIGURED,
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """Decorates a coroutine function: calls with the same key share one run of it.

        ```python
        @flight("report:{user_id}", keep=60, stale=30)
        async def report(user_id: int) -> dict[str, Any]: ...
        ```

        Each call raises what `do` raises, but no `ResultNotKeptError`: it is a cache. Where the value cannot
        be kept, the log says so in a warning, the callers in this session get the value, and other callers
        run the function. Cancelled, it does what `do` does.

        Args:
            key: The key that calls must have in common to share a run. Each field in braces is the value of
                that parameter, percent-encoded: letters, digits and `_.-~` stay as they are. Put every
                parameter into it on which the result depends. Equal values have the same text, and so have
                `1` and `"1"`, and None and `""`. `{{` and `}}` are braces of the key itself. Without fields
                all calls share. The key does not say which function it is for: two functions need two keys.
            blocking_timeout: As for `do`; so for the others.
            keep: As of the `SingleFlight`, which gives the default; so for the others.
            stale: As of the `SingleFlight`.
            early: As of the `SingleFlight`.
            jitter: As of the `SingleFlight`.

        Raises:
            TypeError: It is not a coroutine function, or a field is none of its parameters, or these are
                hidden: by a decorator without `functools.wraps`, or an `AsyncMock`. From a call: the value of
                a field has no text that is the same in every process.
            ValueError: An argument is not as it should be. From a call: the key is empty or too long.
        """
        if callable(key):
            raise TypeError(
                'a SingleFlight needs a key to decorate a function: @flight("report:{user_id}"), with the '
                "parameters in braces on which the result depends"
            )
        name = lock_name(key, "key")
        optional_seconds("blocking_timeout", blocking_timeout)
        self._keeping.but(keep=keep, stale=stale, early=early, jitter=jitter)

        def decorate(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"SingleFlight decorates a coroutine function (async def), not {function!r}")
            names = names_of_calls((name,), function)

            @functools.wraps(function)
            async def sharing(*args: P.args, **kwargs: P.kwargs) -> T:
                of_call = name if names is None else names.of(args, kwargs)[0]
                call = functools.partial(function, *args, **kwargs)
                return await self._do(
                    of_call,
                    call,
                    None,
                    blocking_timeout,
                    caches=True,
                    keep=keep,
                    stale=stale,
                    early=early,
                    jitter=jitter,
                )

            return sharing

        return decorate

    def turn(self, key: str) -> Turn:
        """Whether to do the work oneself, or another has just done it: for work whose result lies elsewhere.

        ```python
        async with flight.turn("cache:warm") as turn:
            if turn.first:
                await warm_the_cache()
        ```

        One enters with `turn.first`. Callers that wait meanwhile, here or elsewhere, enter when that one
        leaves: with `turn.first` False, and all at once, if the body ended well; if it raised, was cancelled,
        or lost its lease, the next one is the first. A later caller begins again. A turn knows nothing of a
        `do` with the same key.

        Args:
            key: Any non-empty str of at most 1 KiB in UTF-8.

        Raises:
            TypeError, ValueError: The key is not as it should be.
            DeadlockError: On entering: this very task is first, and would wait for itself.
            LockLostError: On leaving: the lease was lost, and the body of the first was cancelled.
            BackendError: On entering: Redis refused for good, or gave no answer for `ttl` seconds. On
                leaving: the end was not confirmed.
            SessionClosedError: On entering: the session is closed, or was closed meanwhile.

        Cancelled at any point, nothing stays held, and the next waiter goes on.
        """
        name = lock_name(key, "key")
        return Turn(functools.partial(self._group, name))

    def _group(self, name: str) -> TurnGroup:
        engine = engine_of(self._source, self)
        slot = ("turn", name)
        group: TurnGroup | None = engine.in_progress.get(slot)
        return TurnGroup(engine, slot, name, self._options) if group is None else group

    def __repr__(self) -> str:
        return f"<SingleFlight ttl={self._options.ttl:g} {self._keeping}>"
