"""Limits in FastAPI: a dependency that holds one permit of each key while the handler runs."""

# Annotations are objects in this module: FastAPI looks at them.

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Unpack, final

from fastapi import Request, params

from ..lock.options import LockOptions, Seconds
from ._fastapi_hold import Hold
from ._limited import LimitsRecipe
from ._refusing import Conflict, RetryAfter

Keys = Callable[..., Mapping[str, int] | Awaitable[Mapping[str, int]]]


@final
class Limited(params.Depends):
    """A dependency that holds one permit of each of several keys while the handler of a request runs.

    ```python
    def of_the_tenant(tenant: Annotated[str, Header()]) -> dict[str, int]:
        return {"all": 20, name_of("tenant:{tenant}", tenant=tenant): 1}


    @app.post("/exports", dependencies=[Limited("exports", of_the_tenant, total="all")])
    async def export() -> str:
        ...
    ```

    It holds permits of `Limits`. It releases them when the handler has returned, before the answer is
    sent. If the handler is a generator, whose items FastAPI streams, they are released when it has ended: by
    itself, by an error, or because the client hung up.

    If the permits are not acquired in time, the answer is 503 if only the `total` is full. It is 429 if
    another key is full, because that key is the caller's own. Both have `Retry-After`. If Redis does not
    answer, the answer is 503. If the lease is lost, the handler is cancelled, and the answer is 500, or that
    of `install_error_handlers`; if a stream has begun, the connection is closed. If the client disconnects
    while its request waits, the request leaves its line.

    Args:
        name: Name of the limits: the same for all that share the total.
        keys: A dependency that returns the keys with their caps. It is a function of the `Request`, or of
            parameters, as a handler has them. Use an `async def`, because FastAPI runs other functions in a
            thread.
        total: The key that all callers share.
        blocking_timeout: Seconds to wait; 0 for a single try; None for as long as the client is connected.
            Default 0: a caller that has reached its limit gets the answer at once.
        status: Status of the answer if a limit was reached, whichever key is full: 423, 409, 429 or 503.
            Default: 503 if only the `total` is full, 429 otherwise.
        retry_after: `Retry-After` of this answer: seconds, or a function that gets the `LockTimeoutError`,
            whose `full` is the key, and returns seconds, or None for the default. Default: the median of the
            last 15 times for which handlers of this process have held such permits, less the time for which
            the oldest holder of the full key has held its permit. It is at least 1 s, and at most the time
            that is left of that holder's lease. Without any measured time it is 1 s.
        detail: Text of this answer. Default: a text that says whether the service or the caller has reached
            its limit.
        **options: Options of the limits: `ttl`, `auto_renew`, `max_hold`, `on_lost`, `grace`, `metadata`.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """

    def __init__(
        self,
        name: str,
        keys: Keys,
        *,
        total: str = "all",
        blocking_timeout: Seconds | None = 0.0,
        status: Conflict | None = None,
        retry_after: RetryAfter | None = None,
        detail: str | None = None,
        **options: Unpack[LockOptions],
    ) -> None:
        if not callable(keys):
            raise TypeError(
                "keys must be a function that returns the keys of a request and their caps, as in "
                f"lambda tenant: {{'all': 20, f'tenant:{{tenant}}': 1}}, not {type(keys).__name__}"
            )
        recipe = LimitsRecipe(
            name,
            keys=None,
            total=total,
            blocking_timeout=blocking_timeout,
            options=options,
            status=status,
            retry_after=retry_after,
            detail=detail,
        )
        super().__init__(dependency=_HoldLimits(recipe, keys), scope="function")


@final
class _HoldLimits(Hold):
    def __init__(self, recipe: LimitsRecipe, keys: Keys) -> None:
        super().__init__(
            "Limited serves HTTP routes; in a websocket's, write `async with Limits(session, name, keys)`",
            keys=keys,
        )
        self._recipe = recipe

    @property
    def statuses(self) -> tuple[int, ...]:
        """The statuses of its refusals."""
        return self._recipe.conflict.statuses

    def _wanted(self, request: Request, *asked: Any) -> tuple[str, LimitsRecipe]:
        (keys,) = asked
        recipe = self._recipe.of(keys)
        return recipe.name, recipe

    def __repr__(self) -> str:
        return f"<Limited {self._recipe!r}>"
