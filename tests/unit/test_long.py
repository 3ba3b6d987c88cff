"""Which requests follow a long one over the second connection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from aiolocks.transport.commands.listening import trial
from aiolocks.transport.long import Long
from aiolocks.transport.request import Request


def followed(call: Request[Any], *, owed: list[Request[Any]], residue: bool = False) -> bool:
    second = SimpleNamespace(may_execute=lambda _: residue, owed=lambda: owed)
    return Long(cast("Any", None), lambda _: cast("Any", second), cast("Any", None)).concerns(call)


def test_a_request_of_the_same_slot_follows() -> None:
    long = trial(b"{a}:lock")
    assert followed(trial(b"{a}:queue"), owed=[long])
    assert not followed(trial(b"{b}:queue"), owed=[long])
    assert not followed(trial(b"{a}:queue"), owed=[])


def test_an_undo_follows_what_the_server_may_still_have_of_an_ended_connection() -> None:
    """Its new connection has the server drop the old one before; the main connection has not."""
    assert followed(trial(b"{a}:lock"), owed=[], residue=True)


def test_what_was_sent_before_stays_on_its_connection() -> None:
    again = trial(b"{a}:lock")
    again.unconfirmed = True
    assert not followed(again, owed=[trial(b"{a}:lock")])
