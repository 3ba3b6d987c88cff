"""A sentinel: which server is the master, as far as it knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .pubsub import announce
from .registry import command
from .replies import Pairs, Refusal
from .session import Client

if TYPE_CHECKING:
    from .server import Server

SERVICE = b"locks"


@dataclass
class Belief:
    """The beliefs of one sentinel.

    Attributes:
        master: The name of the server that is the master.
        replica: The other one.
        away: Whether the sentinels agree that the master cannot be reached.
        others: How many other sentinels there are.
        epoch: The number of the configuration: one more with each failover.
    """

    master: str
    replica: str
    others: int
    away: bool = False
    epoch: int = 1


def _state(name: bytes, host: str, flags: str, **fields: int) -> Pairs:
    known = {"ip": host, "port": "6379", "flags": flags, **{key: str(value) for key, value in fields.items()}}
    return Pairs(
        [(b"name", name), *((key.replace("_", "-").encode(), value.encode()) for key, value in known.items())]
    )


def _masters(belief: Belief) -> list[Pairs]:
    flags = "master,s_down,o_down" if belief.away else "master"
    known = {"num_slaves": 1, "num_other_sentinels": belief.others, "quorum": 2, "config_epoch": belief.epoch}
    return [_state(SERVICE, belief.master, flags, **known)]


def learn(server: Server, master: str, replica: str, epoch: int) -> None:
    """The sentinel learns of another master, and tells all who listen."""
    belief: Belief | None = server.sentinel
    assert belief is not None
    news = f"{SERVICE.decode()} {belief.master} 6379 {master} 6379"
    belief.master, belief.replica, belief.epoch, belief.away = master, replica, epoch, False
    announce(server, b"+switch-master", news.encode())
    server.flush_out()


@command("SENTINEL", -2, alone=True)
def sentinel(client: Client, word: bytes, *words: bytes) -> Any:
    belief: Belief | None = client.server.sentinel
    action = word.upper()
    if belief is None:
        raise Refusal("ERR unknown command 'SENTINEL', with args beginning with: ")
    if action == b"MASTERS":
        return _masters(belief)
    if words[:1] != (SERVICE,):
        raise Refusal("ERR No such master with that name")
    if action == b"MASTER":
        return _masters(belief)[0]
    if action == b"GET-MASTER-ADDR-BY-NAME":
        return [belief.master.encode(), b"6379"]
    if action in (b"SLAVES", b"REPLICAS"):
        return [_state(belief.replica.encode() + b":6379", belief.replica, "slave")]
    raise Refusal(f"ERR Unknown sentinel subcommand '{word.decode()}'")
