"""What becomes of a script that runs on a node while its slot moves away, key by key.

The node starts a script if all keys that the script declares are there. Then it refuses each command on a key
that is not there at that moment: one that the script itself has deleted or emptied, one that has just ended,
one that is not declared. What was written stays. So each script that a simulated world runs is run once more,
on copies of the data, by this rule.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from aiolocks.transport.request import Script

from .world.server.replies import Refusal
from .world.server.scripting import execute
from .world.server.server import Server
from .world.server.session import Client

Data = dict[bytes, tuple[Any, int | None]]

MOST: Final = 40
"""How often a script is looked at."""


class _Leaving:
    """The slots of a node that all keys leave."""

    def check_inside(self, client: Client, keys: Sequence[bytes]) -> None:
        if not set(keys) <= set(client.store.present()):
            raise Refusal("ERR Script attempted to access a non local key in a cluster node")


class HalfWay:
    """Looks at each script of a world; `Server.on_script`.

    Args:
        scripts: All that may be sent.
        guarded: Run them in the form for a cluster.

    Attributes:
        seen: How often each was looked at, by its name.
        stopped: The scripts that were stopped half way, and that the same request, sent again, did not bring
            to the same end.
    """

    def __init__(self, scripts: Sequence[Script], *, guarded: bool) -> None:
        self._scripts = {script.text: script for script in scripts}
        self._guarded = guarded
        self._looking = False
        self.seen: Counter[str] = Counter()
        self.stopped: set[str] = set()

    def __call__(self, client: Client, text: bytes, words: tuple[bytes, ...]) -> None:
        script = self._scripts.get(text)
        count = int(words[0])
        if script is None or not count or not set(words[1 : 1 + count]) <= set(client.store.present()):
            return
        if self.seen[script.name] >= MOST:
            return
        self.seen[script.name] += 1
        before = _data(client)
        whole, after = _run(client, before, text, words, slots=None)
        asked = script.guarded.text if self._guarded else text
        reply, half = _run(client, before, asked, words, slots=_Leaving())
        if _plain(half) == _plain(before) or (reply, _plain(half)) == (whole, _plain(after)):
            return
        again, end = _run(client, half, text, words, slots=None)
        if (again, _plain(end)) != (whole, _plain(after)):
            self.stopped.add(script.name)


def _data(client: Client) -> Data:
    store = client.store
    return {key: (copy.deepcopy(store.values[key]), store.ends.get(key)) for key in store.present()}


def _plain(data: Data) -> dict[bytes, Any]:
    """To be compared."""
    return {key: (getattr(value, "order", value), end) for key, (value, end) in data.items()}


def _run(
    client: Client, data: Data, text: bytes, words: tuple[bytes, ...], *, slots: Any
) -> tuple[str, Data]:
    """The reply, and the data behind it, on a server of its own at the same instant."""
    server = Server(lambda: client.server.now_us, version=client.server.version)
    server.now_us = client.server.now_us
    server.slots = slots
    copied = server.connect(lambda _: None, lambda: None, "copy")
    copied.select(client.database)
    for key, (value, end) in copy.deepcopy(data).items():
        copied.store.values[key] = value
        if end is not None:
            copied.store.ends[key] = end
    try:
        reply = repr(execute(copied, text, words))
    except Refusal as refusal:
        reply = repr(refusal)
    return reply, _data(copied)
