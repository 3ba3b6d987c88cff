"""A lock in a session: from an acquire or an adoption to a lease."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast, final

from .._transport import Call, ignore
from ..errors import LockNotOwnedError, SessionClosedError
from .acquisition import Acquisition
from .lease import Lease
from .possession import Possession

if TYPE_CHECKING:
    from .arguments import Options
    from .claim import Claim, Resource
    from .engine import Engine


@final
class Binding:
    """What the acquisitions of one lock in one session have in common."""

    __slots__ = ("_gate", "_kind", "_metadata", "_name", "_options", "_resource", "_user_json", "engine")

    def __init__(self, engine: Engine, resource: Resource, *, kind: str, name: str, options: Options) -> None:
        self.engine = engine
        self._resource = resource
        self._gate = engine.gate(resource)
        self._kind = kind
        self._name = name
        self._options = options
        self._metadata = {**engine.settings.metadata, **options.metadata}
        self._user_json = json.dumps(self._metadata, separators=(",", ":"))

    def acquire(self, blocking_timeout: float | None) -> Coroutine[Any, Any, Lease]:
        attempt = self._attempt(blocking_timeout, once=blocking_timeout == 0)
        return cast("Coroutine[Any, Any, Lease]", attempt)  # refused, it raises

    def try_acquire(self) -> Coroutine[Any, Any, Lease | None]:
        return self._attempt(None, once=True)

    async def _attempt(self, blocking_timeout: float | None, *, once: bool) -> Lease | None:
        """The lease; refused, None for whoever gave no `blocking_timeout`."""
        engine = self.engine
        claim = self._resource.claim(engine.token(), engine.describe(self._user_json))
        acquisition = Acquisition(
            engine,
            self._gate,
            claim,
            kind=self._kind,
            name=self._name,
            options=self._options,
            blocking_timeout=blocking_timeout,
            once=once,
        )
        acquisition.start()
        try:
            await acquisition.done
        except BaseException:
            acquisition.leave()
            raise
        if acquisition.error is not None:
            raise acquisition.error
        if not acquisition.granted:
            if blocking_timeout is not None:
                raise acquisition.timed_out(blocking_timeout)
            return None
        if engine.closing:
            acquisition.leave()
            raise SessionClosedError("the session was closed while waiting")
        waited = acquisition.answered_at - acquisition.started
        return self._lease(claim, acquisition.fencing_token, acquisition.sent, waited)

    def _lease(self, claim: Claim, fencing_token: int, sent: float, waited: float) -> Lease:
        options = self._options
        possession = Possession(
            self.engine,
            self._gate,
            claim,
            kind=self._kind,
            name=self._name,
            fencing_token=fencing_token,
            ttl=options.ttl,
            max_hold=options.max_hold,
            auto_renew=options.auto_renew,
            sent=sent,
        )
        self._gate.entrusted(claim, self.engine.watchdog.watch(possession))
        self.engine.events.acquired(possession, waited)
        return Lease(self.engine, possession, metadata=self._metadata, on_lost=options.on_lost)

    async def locked(self) -> bool:
        return await self.engine.ask(self._resource.locked())

    async def adopt(self, old: str) -> Lease:
        engine, options = self.engine, self._options
        new = engine.token()
        metadata = engine.describe(self._user_json)
        ttl_ms = options.first_ttl_ms
        call, adopted = engine.start(
            self._resource.adopt(old, new, ttl_ms, metadata),
            until=engine.now() + engine.settings.command_timeout,
        )
        try:
            fencing_token = await adopted
            if engine.closing:
                raise SessionClosedError("the session was closed while waiting")
        except BaseException:
            if engine.forget(call):
                # Whoever has the handle may still adopt: it is given back, in order behind the request.
                back = self._resource.adopt(new, old, ttl_ms, metadata)
                until = engine.now() + options.ttl
                engine.send(Call(back, ignore, ignore, until=until, in_full=True), at_once=True)
            raise
        if fencing_token is None:
            raise LockNotOwnedError(
                self._kind.capitalize(), self._name, "it was adopted before, released, or its ttl has passed"
            )
        return self._lease(self._resource.claim(new, metadata), fencing_token, call.sent, 0.0)
