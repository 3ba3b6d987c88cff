"""Rate limits of a web application: whose, and the answer to one too many; the same for all frameworks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, final

from .. import Session
from .._logs import get_logger
from ..errors import BackendError, ConfigurationError, LockTimeoutError, SessionClosedError
from ..kinds.ratelimit import RateDecision, RateLimit, bucket_of
from ..lock import together
from ..lock.naming import NameTemplate, text_of
from ..lock.options import Seconds, optional_seconds
from ..lock.sources import log_level
from ._holding import Gone, Watch, hung_up
from ._refusing import SOON, Conflict, Conflicting, Refusal, filled, named, unavailable

log: Final = get_logger("aiolocks.requests")

CLIENT: Final = "client"
"""The field of a template that is the address of the client."""
KEY: Final = "key"
"""The field that is what `key=` returns."""
TOO_MANY: Final = "Too many requests. Try again later."
POLICY: Final = "default"
"""The name of the policy in the header fields, unless the user gives one."""
FIELDS: Final = ("RateLimit-Policy", "RateLimit")
"""The header fields of draft-ietf-httpapi-ratelimit-headers-10."""


@final
class Counted:
    """The limits that have counted one request, for the fields of its answer, whoever makes the answer.

    Attributes:
        added: An outer part of the application adds the fields.
    """

    __slots__ = ("_policies", "_states", "added")

    def __init__(self, *, added: bool) -> None:
        self.added = added
        self._policies: dict[str, str] = {}
        self._states: list[str] = []

    def add(self, policy: str, limit: RateLimit, decision: RateDecision) -> None:
        """A limit has counted the request."""
        # Clients find the state of a policy by its name.
        name, number = policy, 1
        while name in self._policies:
            number += 1
            name = f"{policy}-{number}"
        wait = decision.reset_after if decision else decision.retry_after
        filled_in = limit.burst * limit.per / limit.limit
        self._policies[name] = f'"{name}";q={limit.burst};w={math.ceil(filled_in)}'
        self._states.append(f'"{name}";r={decision.remaining};t={math.ceil(wait)}')

    @property
    def fields(self) -> dict[str, str]:
        """Lists with an item for each limit; empty if none has counted."""
        if not self._states:
            return {}
        return dict(zip(FIELDS, (", ".join(self._policies.values()), ", ".join(self._states)), strict=True))


def distinct(what: str, rates: Iterable[Rate]) -> None:
    """Returns if each limit of a route has a name of its own.

    Raises:
        ConfigurationError: Two have one name, in one bucket, and each request would count twice.
    """
    seen: list[object] = []
    for rate in rates:
        if rate.name_given in seen:
            raise ConfigurationError(
                f"two {what} of one route have the name {rate.name_given!r}, and so one bucket: give each "
                "limit a name of its own, as in 'search-second:{client}' and 'search-day:{client}'"
            )
        seen.append(rate.name_given)


@final
class Rate:
    """Which limit, how long to wait, and what to answer beyond it; checked.

    Its arguments are the arguments of the user, and `what`: how messages call it.

    Attributes:
        name_given: The template, or the function that returns the name.
        template: None if a function returns the name.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """

    __slots__ = ("_arguments", "_conflict", "_policy", "_timeout", "_what", "name_given", "template")

    def __init__(
        self,
        what: str,
        name: object,
        limit: int,
        *,
        per: Seconds,
        burst: int | None,
        blocking_timeout: Seconds | None,
        status: Conflict,
        detail: str,
        policy: str,
        key: object,
    ) -> None:
        self._what = what
        self.name_given = name
        self.template = (
            NameTemplate(name, otherwise="pass key=, and take {key}") if isinstance(name, str) else None
        )
        if self.template is None and not callable(name):
            raise TypeError(f"name must be a str or a function, not {type(name).__name__}")
        if key is not None and not callable(key):
            raise TypeError(f"key must be a function that returns who asks, not {type(key).__name__}")
        if self.template is None and key is not None:
            raise TypeError(f"{what} has a function that returns the name, and needs no key=")
        if (key is not None) != (KEY in self.fields):
            raise TypeError(f"{what} has a field {{key}} in its name if it has key=, and else none: {name!r}")
        self._policy = _policy(policy)
        self._arguments = (limit, per, burst)
        self._timeout = optional_seconds("blocking_timeout", blocking_timeout)
        self._conflict = Conflicting(status=status, detail=detail)
        bucket_of("checked", limit, per, burst)

    @property
    def statuses(self) -> tuple[int, ...]:
        """The statuses of its refusals."""
        return self._conflict.statuses

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the template; none if a function returns the name."""
        return () if self.template is None else tuple(self.template.fields)

    def _limit(self, session: Session, name: str) -> RateLimit:
        limit, per, burst = self._arguments
        return RateLimit(session, name, limit, per, burst=burst)

    def name(self, values: Mapping[str, str]) -> str:
        """The name of the limit for one request, from the template.

        Raises:
            Refusal: The request's values make no name.
        """
        assert self.template is not None
        return filled(self.template, values)

    @staticmethod
    def found(name: object) -> str:
        """The name of the limit for one request, from the function.

        Raises:
            Refusal: It is empty, or too long.
            TypeError: It is no str.
        """
        return named(name)

    def client(self, host: str | None) -> str:
        """The address of the client, as text.

        Raises:
            TypeError: The request has no address of its client.
        """
        if not host:  # aiohttp says '' of a unix socket
            raise TypeError(
                f"{self._what} has a field {{client}} in its name, and this request has no address of its "
                "client, as over a unix socket: give key= a function that says who asks, and take {key}"
            )
        return host

    @staticmethod
    def key(found: object) -> str:
        """What `key=` has returned, as text.

        Raises:
            TypeError: It has none that is the same in every process.
        """
        return text_of(found)

    @property
    def waits(self) -> bool:
        """Whether a request may wait for its turn."""
        return self._timeout != 0

    async def admit(
        self, session: Session, name: str, gone: Gone | None, counted: Counted, *, route: str
    ) -> None:
        """Returns once the request is admitted. `counted` has this limit then, and also if it is refused.

        `gone` returns when the client has hung up, and then the wait ends. None: the client is not watched.

        Raises:
            Refusal: It is one too many, or the server does not answer.
        """
        limit = self._limit(session, name)
        try:
            decision = await self._ask(limit, gone, route, name)
        except (BackendError, SessionClosedError) as error:
            together.tell(
                log,
                log_level(session, error),
                "%s: no answer for rate limit %r: %s",
                *(route, name, error),
                name=f"{route} ({name!r})",
                many="for %d requests there was no answer for their rate limits: %s: %s",
                why=str(error),
            )
            raise unavailable(error) from error
        counted.add(self._policy, limit, decision)
        if decision:
            return
        log.debug("%s: rate limit %r is reached", route, name)
        wait = max(SOON, math.ceil(decision.retry_after))
        raise Refusal(self._conflict.status, self._conflict.detail, retry_after=wait)

    async def _ask(self, limit: RateLimit, gone: Gone | None, route: str, name: str) -> RateDecision:
        if self._timeout == 0:
            return await limit.try_acquire()
        watch = Watch(gone, route, name)
        try:
            decision = await watch.unless_gone(limit.acquire(blocking_timeout=self._timeout))
            await watch.ended()
            if not watch.gone:
                return decision
            await decision.settle(0)  # it was admitted in the moment in which its client hung up
            raise hung_up(route, name)
        except LockTimeoutError as error:
            wait = error.remaining or 0.0
            return RateDecision(allowed=False, remaining=0, retry_after=wait, reset_after=wait)

    def __repr__(self) -> str:
        limit, per, _ = self._arguments
        return f"<Rate {self.name_given!r} {limit} in {per}>"


def _policy(name: object) -> str:
    """The name of a policy, which is a string of RFC 9651."""
    if not isinstance(name, str):
        raise TypeError(f"policy must be a str, not {type(name).__name__}")
    if not name or not name.isascii() or not name.isprintable() or '"' in name or "\\" in name:
        raise ValueError(f"policy must be of printable ASCII, without quotes and backslashes, not {name!r}")
    return name
