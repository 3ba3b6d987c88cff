"""Limits in FastAPI: a dependency that holds a permit of each key for the length of the handler."""

# Annotations are objects here, for FastAPI looks at them.

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Annotated, Any, Unpack, final

from fastapi import Depends, HTTPException, Request, params
from starlette.requests import HTTPConnection

from .._core.arguments import Seconds
from .._core.lease import Lease
from .._core.session import Session
from ._fastapi_session import current_session
from ._hanging_up import gone_from
from ._holding import LockOptions, holding
from ._limited import LimitsRecipe
from ._refusing import Refusal

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
    yet. Where Redis does not answer, it is 503. When the lease is lost, the handler is cancelled and the
    answer is 500. A client that hangs up while it waits leaves its line.

    Args:
        name: Name of the limits: the same for all that share the total.
        keys: A dependency that returns the keys and their caps: a function of the `Request`, or of parameters
            as a handler has them; best an `async def`, for FastAPI runs others in a thread.
        total: The key of all callers together.
        blocking_timeout: Seconds to wait; 0 for a single try; None for as long as the client does. Default
            0: a caller that has reached its limit is told at once.
        **options: Options of the limits: `ttl`, `auto_renew`, `max_hold`, `on_lost`, `metadata`.

    Raises:
        TypeError, ValueError: An argument is not as it should be.
    """

    def __init__(
        self,
        name: str,
        keys: Keys,
        *,
        total: str = "all",
        blocking_timeout: Seconds | None = 0.0,
        **options: Unpack[LockOptions],
    ) -> None:
        if not callable(keys):
            raise TypeError(
                "keys must be a function that returns the keys of a request and their caps, as in "
                f"lambda tenant: {{'all': 20, f'tenant:{{tenant}}': 1}}, not {type(keys).__name__}"
            )
        recipe = LimitsRecipe(
            name, keys=None, total=total, blocking_timeout=blocking_timeout, options=options
        )
        super().__init__(dependency=_HoldLimits(recipe, keys), scope="function")


@final
class _HoldLimits:
    """The callable that FastAPI calls."""

    def __init__(self, recipe: LimitsRecipe, keys: Keys) -> None:
        self._recipe = recipe
        wanted: dict[str, Any] = {
            "connection": HTTPConnection,
            "session": Annotated[Session, Depends(current_session)],
            "keys": Annotated[Any, Depends(keys)],
        }
        # The parameters that FastAPI must fill in: those of the function for the keys become those of the
        # route.
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
                for parameter, annotation in wanted.items()
            ]
        )

    async def __call__(
        self, *, connection: HTTPConnection, session: Session, keys: object
    ) -> AsyncGenerator[Lease, None]:
        if not isinstance(connection, Request):
            raise TypeError(
                "Limited serves HTTP routes; in a websocket's, write `async with Limits(session, name, keys)`"
            )
        recipe = self._recipe.of(keys)
        try:
            async with holding(session, recipe.name, recipe, await gone_from(connection)) as lease:
                yield lease
        except Refusal as refusal:
            raise HTTPException(refusal.status, refusal.detail, refusal.headers) from refusal

    def __repr__(self) -> str:
        return f"<Limited {self._recipe!r}>"
