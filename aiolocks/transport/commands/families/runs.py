"""Jobs and schedules, whose runs are kept as permits are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ...answers import NO_TTL
from ..base import SEAT_LENGTH
from .checks import of_others, wrong_types
from .family import Family
from .permits import FORCE_PERMITS, read_permits
from .snapshots import NO_CONTENT, Content, Holder, Snapshot

_TICKET: Final = re.compile(rb"[\w-]{22}\.\d+")


def read_job(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """The runs of a job, beside others or not, and the ticket that owns its key, queued or running."""
    snapshot, owner, about = _read_runs(now_us, found), found["owner"], found["about"]
    wrong = wrong_types({"owner": "string", "about": "hash"}, found)
    if owner.type == "string" and _TICKET.fullmatch(owner.value) is None:
        wrong = (*wrong, of_others("owner"))
    if about.type == "hash" and not all(map(_TICKET.fullmatch, about.value)):
        wrong = (*wrong, of_others("about"))
    if wrong or owner:
        endless = not wrong and owner.ttl_ms == NO_TTL
        snapshot = snapshot._replace(stands=True, problems=(*snapshot.problems, *wrong), endless=endless)
    if owner.type != "string":
        return snapshot
    ticket: bytes = owner.value
    holder = Holder(
        (ticket.decode(errors="replace"),),
        None,
        None if owner.ttl_ms == NO_TTL else owner.ttl_ms,
        about.value.get(ticket, b"") if about.type == "hash" else b"",
        mode="ticket",
    )
    return snapshot._replace(holders=(*snapshot.holders, holder), ticket=ticket)


def read_schedule(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """The runs of a schedule, which are kept as permits are."""
    return read_permits(now_us, {**found, "value": NO_CONTENT})


def _read_runs(now_us: int, found: Mapping[str, Content]) -> Snapshot:
    """Those that count for the limit, and those beside them, which are kept in the same way."""
    snapshot = read_permits(now_us, found, (b"current",))
    others = {"": found["beside"], "leases": found["beside.leases"], "value": NO_CONTENT}
    beside = read_permits(now_us, others)
    return snapshot._replace(
        holders=(*snapshot.holders, *beside.holders),
        stands=snapshot.stands or beside.stands,
        problems=tuple(dict.fromkeys((*snapshot.problems, *beside.problems))),
    )


JOBS: Final = Family(
    ("", "leases", "value", "owner", "about", "beside", "beside.leases"),
    read_job,
    passive=("fence", "value", "beside.value", "over", "before", "about", "seen", "run."),
    seat=SEAT_LENGTH,
    force=FORCE_PERMITS,
    forced=(
        *("", "leases", "queue", "value", "fence", "owner"),
        *("beside", "beside.leases", "beside.value", "about"),
    ),
)
SCHEDULES: Final = Family(
    ("", "leases"),
    read_schedule,
    passive=("fence", "register", "history"),
    seat=SEAT_LENGTH,
    force=FORCE_PERMITS,
    # There is no such key as `value`: what is freed is the run, and never the register.
    forced=("", "leases", "queue", "value", "fence"),
)
