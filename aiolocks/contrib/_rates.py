"""Rate limits of a web application: whose, and the answer to one too many; the same for all frameworks."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Final, final

from .. import Session
from ..errors import BackendError, LockTimeoutError, SessionClosedError
from ..kinds.ratelimit import RateDecision, RateLimit, bucket_of
from ..lock.naming import NameTemplate, text_of
from ..lock.options import Seconds, optional_seconds
from ..lock.sources import log_level
from ._refusing import SOON, Conflict, Conflicting, Refusal, filled, unavailable

log: Final = logging.getLogger("aiolocks.requests")

CLIENT: Final = "client"
"""The field of a template that is the address of the client."""
KEY: Final = "key"
"""The field that is what `key=` returns."""
TOO_MANY: Final = "Too many requests. Try again later."


@final
class Rate:
    """Which limit, how long to wait, and what to answer beyond it; checked.

    Its arguments are those that the user gives, and `what`: how messages call it.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """

    __slots__ = ("_arguments", "_conflict", "_timeout", "_what", "template")

    def __init__(
        self,
        what: str,
        name: str,
        limit: int,
        *,
        per: Seconds,
        burst: int | None,
        blocking_timeout: Seconds | None,
        status: Conflict,
        detail: str,
        has_key: bool,
    ) -> None:
        self._what = what
        self.template = NameTemplate(name, otherwise="pass key=, and take {key}")
        if has_key != (KEY in self.template.fields):
            raise TypeError(f"{what} has a field {{key}} in its name if it has key=, and else none: {name!r}")
        self._arguments = (limit, per, burst)
        self._timeout = optional_seconds("blocking_timeout", blocking_timeout)
        self._conflict = Conflicting(status=status, detail=detail)
        bucket_of("checked", limit, per, burst)

    def _limit(self, session: Session, name: str) -> RateLimit:
        limit, per, burst = self._arguments
        return RateLimit(session, name, limit, per, burst=burst)

    def name(self, values: Mapping[str, str]) -> str:
        """The name of the limit for one request.

        Raises:
            Refusal: The request's values make no name.
        """
        return filled(self.template, values)

    def client(self, host: str | None) -> str:
        """The address of the client, as text.

        Raises:
            TypeError: Nobody knows it.
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

    async def admit(self, session: Session, name: str, *, route: str) -> dict[str, str]:
        """Returns the fields of the answer, once the request is admitted.

        Raises:
            Refusal: It is one too many, or the server does not answer. It has the fields, too.
        """
        limit = self._limit(session, name)
        try:
            decision = await self._ask(limit)
        except (BackendError, SessionClosedError) as error:
            log.log(log_level(session, error), "%s: no answer for rate limit %r: %s", route, name, error)
            raise unavailable(error) from error
        fields = _fields(limit, decision)
        if decision:
            return fields
        log.debug("%s: rate limit %r is reached", route, name)
        wait = max(SOON, math.ceil(decision.retry_after))
        refusal = Refusal(self._conflict.status, self._conflict.detail, retry_after=wait)
        refusal.more = fields
        raise refusal

    async def _ask(self, limit: RateLimit) -> RateDecision:
        if self._timeout == 0:
            return await limit.try_acquire()
        try:
            return await limit.acquire(blocking_timeout=self._timeout)
        except LockTimeoutError as error:
            wait = error.remaining or 0.0
            return RateDecision(allowed=False, remaining=0, retry_after=wait, reset_after=wait)

    def __repr__(self) -> str:
        limit, per, _ = self._arguments
        return f"<Rate {self.template.text!r} {limit} in {per}>"


def _fields(limit: RateLimit, decision: RateDecision) -> dict[str, str]:
    """As draft-ietf-httpapi-ratelimit-headers-10 has them."""
    wait = decision.reset_after if decision else decision.retry_after
    return {
        "RateLimit-Policy": f'"default";q={limit.limit};w={math.ceil(limit.per)}',
        "RateLimit": f'"default";r={decision.remaining};t={math.ceil(wait)}',
    }
