"""The checks of a key that all families share: its type, its ttl, whether aiolocks wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from ..answers import NO_TTL
from .snapshots import NO_CONTENT, NOTHING, Content, whole_number

# A token of ours is hexadecimal; a fencing token has no more digits than 2^53.
TOKEN: Final = re.compile(rb"(?:[0-9a-f]{32}){1,2}")
ID: Final = re.compile(rb"(?:[0-9a-f]{32}){1,2}|.*\.bell\..*|held", re.DOTALL)
"""Of a holder or of a waiter; and the name of a sum."""
_FENCE: Final = re.compile(rb"\d{1,16}")
_LAST_FENCE: Final = 2**53 - 1


def wrong_types(types: Mapping[str, str], found: Mapping[str, Content]) -> tuple[str, ...]:
    """The keys that are there and of another type than ours."""
    return tuple(
        f"{f'its {role}' if role else 'it'} is a {found[role].type}, not a {type_}"
        for role, type_ in types.items()
        if role in found and found[role].type not in (type_, NOTHING)
    )


def of_others(role: str) -> str:
    return f"what stands {f'in its {role}' if role else 'there'} was not written by aiolocks"


def not_ours(found: Mapping[str, Content], roles: Iterable[str]) -> tuple[str, ...]:
    """Sets and hashes with members that are neither tokens nor bells."""
    return tuple(
        of_others(role)
        for role in roles
        if role in found and isinstance(found[role].value, dict)
        if any(ID.fullmatch(one) is None for one in found[role].value)
    )


def without_ttl(*contents: Content, ours: bool) -> tuple[str, ...]:
    """Keys that have no ttl; where they are ours, their holders have deadlines inside of them."""
    if not any(content.ttl_ms == NO_TTL for content in contents):
        return ()
    if ours:
        return ("it has lost its ttl, and gets one when it is used again",)
    return ("it has no ttl: nothing frees it",)


def after(deadlines: Content, now_us: int) -> dict[bytes, int]:
    """The members whose deadlines have not passed, with the milliseconds that they have left."""
    if not deadlines:
        return {}
    now_ms = now_us // 1000
    left = {one: whole_number(deadline) for one, deadline in deadlines.value.items()}
    return {one: ms - now_ms for one, ms in left.items() if ms is not None and ms > now_ms}


def read_beside(found: Mapping[str, Content]) -> tuple[str, ...]:
    """The faults of the keys that stand beside the holders, for a while after them too."""
    types = dict.fromkeys(found, "zset") | {"fence": "string", "idle": "string", "seen": "hash"}
    types |= dict.fromkeys(("value", "beside.value", "register", "stolen", "waits"), "hash")
    types |= {"log": "list"}
    wrong = wrong_types(types, found)
    fence = found.get("fence", NO_CONTENT)
    if fence.type == "string" and (_FENCE.fullmatch(fence.value) is None or int(fence.value) >= _LAST_FENCE):
        wrong = (*wrong, of_others("fence"))
    return wrong
