"""Acquiring a lock that its session may keep between uses: from what it keeps, or from the server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar, final

from ..errors import SessionClosedError
from ..transport import Granted
from .binding import Binding
from .claim import Claim
from .tenure import RUN, CachedPossession, KeptClaim, NotedPossession, Tenure, TenureState
from .waiter import Attempt, FirstAsk, Waiter

if TYPE_CHECKING:
    from .lease import Lease, Possession
    from .waiter import Grant

LeaseT = TypeVar("LeaseT", bound="Lease")

_HIT: Final = Granted(0, 0)
"""For the leases of hits, which the server has not granted one by one."""


@final
class KeptBinding(Binding[LeaseT]):
    """A lock with a `cache` in a session."""

    __slots__ = ()

    async def _attempt(
        self, blocking_timeout: float | None, *, once: bool, by_force: bool = False
    ) -> LeaseT | None:
        assert not by_force, "a lock with a cache refuses that"
        engine, gate, kept = self.engine, self.gate, self.engine.kept
        deadline = None if blocking_timeout is None else engine.now() + blocking_timeout
        while True:
            tenure = gate.kept
            if tenure is not None and tenure.idle:
                if kept.run >= RUN:
                    kept.run = 0
                    await asyncio.sleep(0)  # nothing is held here: it may have been recalled meanwhile
                    continue
                possession = tenure.taken(self)
                if possession is not None:
                    engine.events.acquired(possession, 0.0)
                    return self._lease_type(self, possession, _HIT)
            left = blocking_timeout if deadline is None else max(0.0, deadline - engine.now())
            acquisition = await self._asked(left, once=once)
            grant = acquisition.grant
            if grant is None:
                self._not_had(acquisition, blocking_timeout)
                return None
            if engine.closing:
                acquisition.leave()
                raise SessionClosedError("the session was closed while waiting")
            possession = self._possession(acquisition.claim, grant)
            if possession is not None:
                waited = acquisition.answered_at - acquisition.started
                return self._leased(possession, grant.answer, waited)
            acquisition.leave()  # its time passed before its task had its turn: asked for again

    async def _asked(self, blocking_timeout: float | None, *, once: bool) -> Attempt | FirstAsk | Waiter:
        """Asks the server, or waits for what a task of this session lets go of: the acquire, ended."""
        idle = self.gate.idle
        # A single try beside a holder of this session is refused.
        claim = (self._kept_claim() if idle or not once else None) or self._claim(self.engine.token(), 0)
        acquisition: Attempt | FirstAsk | Waiter
        if not once and idle:
            acquisition = FirstAsk(self, claim, blocking_timeout)
        else:
            acquisition = (Attempt if once else Waiter)(self, claim, blocking_timeout)
            acquisition.start()
        try:
            await acquisition.done
        except BaseException:
            (acquisition.waiter or acquisition).leave()
            _dropped(claim)
            raise
        acquisition = acquisition.waiter or acquisition
        if acquisition.grant is None or acquisition.claim is not claim:
            _dropped(claim)
        if acquisition.grant is None and isinstance(acquisition, Attempt) and acquisition.owner_asked:
            return await self._answer_of_owner(claim)
        return acquisition

    def _kept_claim(self) -> Claim | None:
        """A claim that may begin a tenure, where that pays; None: a claim like any other.

        It does for a name that is used again within `cache` seconds, and was not recalled too often. A name
        that is used once would gain nothing: another session that uses it next would have to ask for it, and
        it would be blocked for a ttl if this process died meanwhile. One that waits behind tasks of its own
        session begins it when its turn comes, and hands it on to the next.
        """
        engine, gate = self.engine, self.gate
        habit, now = engine.kept.habit(self.name), engine.now()
        if (
            now - habit.used_at > self.options.cache
            or now < habit.not_before
            or engine.kept.closed
            or gate.kept is not None
            or not gate.alone
        ):
            return None
        if not engine.hears or engine.way != "tracking":
            if engine.way not in ("", "tracking"):
                engine.kept.unheard(engine.way)
            return None
        described = engine.describe(self._user_json, self._beside)
        claim = KeptClaim(self.resource.commands, engine.token(), described, self.options.first_ttl_ms)
        Tenure(self, claim, habit)
        return claim

    def _possession(self, claim: Claim, grant: Grant) -> Possession | None:
        """What was granted; None where too little time is left, as of a lease that was handed on."""
        if isinstance(claim, KeptClaim) and (tenure := claim.tenure) is not None:
            if tenure.state is TenureState.ASKING:
                if grant.answer.room:
                    return tenure.begin(self, grant)
                tenure.over()
            elif tenure.lasts:
                return CachedPossession(self, tenure, grant.sent, hit=True)
            else:
                return None
        possession = NotedPossession(self, claim, grant.answer.fencing_token, grant.sent, grant.sent_steady)
        possession.habit = self.engine.kept.habit(self.name)
        return possession

    def _leased(self, possession: Possession, answer: Granted, waited: float) -> LeaseT:
        watch = self.engine.watchdog.watch(possession)
        self.gate.here.entrust(possession.claim, watch)
        if isinstance(possession, CachedPossession):
            possession.tenure.watched(watch)
        self.engine.events.acquired(possession, waited)
        return self._lease_type(self, possession, answer)


def _dropped(claim: Claim) -> None:
    """Nothing was granted for it, or that is undone."""
    if isinstance(claim, KeptClaim) and claim.tenure is not None:
        claim.tenure.over()
