"""Limits in FastAPI: a dependency that holds a permit of each key for the length of the handler."""

# Annotations are objects here, for FastAPI looks at them.

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
    """A dependency that holds a permit of each of several keys while the handler of a request runs.

    ```python
    def of_the_tenant(tenant: Annotated[str, Header()]) -> dict[str, int]:
        return {"all": 20, f"tenant:{tenant}": 1}


    @app.post("/exports", dependencies=[Limited("exports", of_the_tenant, total="all")])
    async def export() -> str:
        ...
    ```

    It holds `Limits`, which are let go of when the handler has returned, before the answer is sent.

    If they cannot be acquired, the answer is 503 where the `total` is full, and 429 where another key is,
    which is the caller's own; where both are, 429. Both have a measured `Retry-After`: the median of the last
    15 holds by handlers of this process, less the time for which the oldest holder of the full key has had it
    by now. It is at least 1 s, and not more than what that lease has left; 1 s where nothing was measured
    yet. `status`, `retry_after` and `detail` change that. Where Redis does not answer, it is 503. When the
    lease is lost, the handler is cancelled and the answer is 500, or that of `install_error_handlers`. A
    client that hangs up while it waits leaves its line.

    Args:
        name: Name of the limits: the same for all that share the total.
        keys: A dependency that returns the keys and their caps: a function of the `Request`, or of parameters
            as a handler has them; best an `async def`, for FastAPI runs others in a thread.
        total: The key of all callers together.
        blocking_timeout: Seconds to wait; 0 for a single try; None for as long as the client does. Default
            0: a caller that has reached its limit is told at once.
        status: Status of the answer where a limit was reached, whichever key is full: 423, 409, 429 or 503.
            Default: 503 where the `total` is full, 429 where another key is.
        retry_after: Seconds for its `Retry-After`, or a function that is called with the
            `LockTimeoutError`, whose `full` is the key, and returns seconds, or None for the default.
            Default: the measured time.
        detail: Text of that answer. Default: one that says whether it is the service or the caller that has
            reached its limit.
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

    def _wanted(self, request: Request, *asked: Any) -> tuple[str, LimitsRecipe]:
        (keys,) = asked
        recipe = self._recipe.of(keys)
        return recipe.name, recipe

    def __repr__(self) -> str:
        return f"<Limited {self._recipe!r}>"
