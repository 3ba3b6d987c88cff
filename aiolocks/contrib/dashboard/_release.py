"""Releasing by force: the users that may, the requests that count, and the record of it."""

from __future__ import annotations

import inspect
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast, final
from urllib.parse import urlsplit

from ..._holders import HolderInfo, in_words
from ..._infos import LockInfo
from ..._logs import get_logger
from ..._visible import visible
from ...errors import LockError
from ...inspect.freeing import force_release
from ...inspect.looking import look, names_under
from ...lock.engine import Engine
from ...lock.options import lock_name
from ...transport.steps.family import holdable
from .._refusing import Refusal
from ._http import Receive, Scope, Send, answer_json, body_of, header
from ._rows import Row, row_id

log = get_logger("aiolocks.dashboard")

_MOST_BYTES: Final = 65_536
_MOST_KEPT: Final = 50
_OWN_HEADER: Final = b"x-aiolocks-release"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRequest:
    """The release that `allow_release` is asked to allow.

    Attributes:
        kind: Kind of the lock.
        name: Name of the lock that the operator has chosen.
        names: All names that would be freed, `name` first. For a `MultiLock` these are all of its names,
            because it cannot lose only one of them.
        holders: The holders that would lose the lock.
        scope: The ASGI scope of the request. It has `scope["user"]`, `scope["session"]` and `scope["state"]`
            if the application around the dashboard puts them there.
        headers: The headers of the request, with names in lower case.
    """

    kind: str
    name: str
    names: tuple[str, ...]
    holders: tuple[HolderInfo, ...]
    scope: Mapping[str, Any] = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)


Decision = bool | str | None
AllowRelease = Callable[[ReleaseRequest], Decision | Awaitable[Decision]]


@final
class Releases:
    """Requests to release by force, and what became of them.

    Invariants:
    - nothing is freed that `allow_release` has not allowed, and nothing but what the operator has seen: the
      request names the leases, and what was granted since is left alone;
    - of a `MultiLock` all names are freed, or none.
    """

    def __init__(self, allow_release: AllowRelease | None) -> None:
        self._allow = allow_release
        self._audit: deque[Row] = deque(maxlen=_MOST_KEPT)
        self._count = 0

    @property
    def possible(self) -> bool:
        """Whether any viewer may ever release."""
        return self._allow is not None

    def audit(self) -> Iterable[Row]:
        """The last requests, the latest first."""
        return tuple(self._audit)

    async def serve(self, engine: Callable[[], Engine], scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        try:
            _refuse_foreign(scope)
            kind, name, leases = _wanted(await body_of(receive, _MOST_BYTES))
            freed = await self._release(engine(), scope, kind, name, leases)
        except Refusal as refusal:
            await answer_json(send, refusal.status, error=refusal.detail)
        except LockError as error:
            log.warning("a release by force failed: %s", error)
            await answer_json(send, 503, error=str(error))
        else:
            await answer_json(send, 200, freed=freed)

    async def _release(
        self, engine: Engine, scope: Scope, kind: str, name: str, leases: frozenset[str]
    ) -> list[str]:
        if self._allow is None:
            raise Refusal(403, "this dashboard does not release locks")
        found = await look(engine, [(kind, name)], waiters=0)
        if not found:
            raise Refusal(409, "nobody holds it any more")
        info = found[0]
        if frozenset(one.lease_id for one in info.holders) != leases:
            raise Refusal(409, "its holder has changed: look again")
        names = await names_under(engine, info)
        by = await self._decided(scope, info, names)
        freed = await force_release(engine, name, kind, leases=leases, by=by)
        if not freed:
            raise Refusal(409, "its holder has changed: look again")
        self._note(info, names, by, "released")
        # Its holder, which has lost them with the first one, gives them up too when it learns of that.
        for one in names[1:]:
            await force_release(engine, one, kind, leases=leases, by=by)
        return [one.lease_id for info in freed for one in info.holders]

    async def _decided(self, scope: Scope, info: LockInfo, names: tuple[str, ...]) -> str:
        """The operator, as the callback names them.

        Raises:
            Refusal: The callback does not allow it.
        """
        assert self._allow is not None
        headers = {
            bytes(key).decode("latin-1").lower(): bytes(value).decode("latin-1")
            for key, value in scope["headers"]
        }
        request = ReleaseRequest(
            kind=info.kind, name=info.name, names=names, holders=info.holders, scope=scope, headers=headers
        )
        client = scope.get("client")
        by = f"an operator at {client[0]}" if client else "an operator"
        try:
            decision = self._allow(request)
            if inspect.isawaitable(decision):
                decision = await decision
        except Exception:
            log.exception("allow_release failed, and so %s %r is not released", info.kind, info.name)
            self._note(info, names, by, "refused")
            raise Refusal(500, "allow_release has failed: see the log of the server") from None
        named = cast("object", decision)
        if named is not True and not (isinstance(named, str) and named):
            self._note(info, names, by, "refused")
            raise Refusal(403, "you may not release this lock")
        return named if isinstance(named, str) else by

    def _note(self, info: LockInfo, names: tuple[str, ...], by: str, outcome: str) -> None:
        """Writes it down: in the log, and for all who look."""
        held = f"held {in_words(info.holders)}" if info.holders else info.problem or "kept by nobody"
        if names[1:]:
            held += f", together with {', '.join(map(repr, names[1:]))}"
        log.warning(
            "%s %r %s by force, by %s: it was %s",
            info.kind,
            info.name,
            "was released" if outcome == "released" else "was NOT released",
            visible(by),
            held,
            extra={
                "aiolocks_audit": {
                    "outcome": outcome,
                    "kind": info.kind,
                    "name": info.name,
                    "names": list(names),
                    "by": by,
                    "leases": [one.lease_id for one in info.holders],
                    "fencing_tokens": [one.fencing_token for one in info.holders],
                }
            },
        )
        self._count += 1
        self._audit.appendleft(
            {
                "id": row_id(self._count),
                "kind": info.kind,
                "name": info.name,
                "outcome": outcome,
                "by": by,
                "held": held,
                "at": round(time.time(), 1),
            }
        )


def _refuse_foreign(scope: Scope) -> None:
    """Pages of other origins can make a browser send requests; not with a header of our own.

    Raises:
        Refusal: It does not come from a page of the dashboard.
    """
    if not header(scope, _OWN_HEADER) or not header(scope, b"content-type").startswith("application/json"):
        raise Refusal(403, "this request does not come from the dashboard")
    site = header(scope, b"sec-fetch-site")
    if site and site != "same-origin":
        raise Refusal(403, "this request comes from another site")
    origin = header(scope, b"origin")
    try:
        same = not origin or urlsplit(origin).netloc == header(scope, b"host")
    except ValueError:
        same = False
    if not site and not same:
        raise Refusal(403, "this request comes from another origin")


def _wanted(body: bytes | None) -> tuple[str, str, frozenset[str]]:
    """Kind and name of the lock, and its leases as the operator has seen them.

    Raises:
        Refusal: The request says nothing of the kind.
    """
    try:
        if body is None:
            raise ValueError("too long")
        fields: Any = json.loads(body)
        kind, name, leases = fields["kind"], lock_name(fields["name"]), frozenset(map(str, fields["leases"]))
        if kind not in holdable():
            raise ValueError("no such kind")
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Refusal(400, "the request is malformed: load the page again") from None
    return kind, name, leases
