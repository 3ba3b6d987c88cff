"""The commands about a connection, on it."""

from __future__ import annotations

from typing import Any

from .numbers import integer, syntax
from .registry import command
from .replies import OK, PONG, QUEUED, Pairs, Refusal, Verbatim
from .session import Client


@command("HELLO", -1, alone=True)
def hello(client: Client, *words: bytes) -> Pairs:
    server = client.server
    if words:
        if words[0] not in (b"2", b"3"):
            raise Refusal("NOPROTO unsupported protocol version")
        rest = list(words[1:])
        while rest:
            option = rest.pop(0).upper()
            if option == b"AUTH" and len(rest) >= 2:
                del rest[:2]
            elif option == b"SETNAME" and rest:
                client.name = rest.pop(0)
            else:
                raise Refusal(f"ERR Syntax error in HELLO option '{option.decode().lower()}'")
        client.protocol = int(words[0])
    return Pairs(
        [
            (b"server", b"redis"),
            (b"version", server.version.encode()),
            (b"proto", client.protocol),
            (b"id", client.id),
            (b"mode", b"standalone" if server.slots is None else b"cluster"),
            (b"role", b"master" if server.master is None else b"replica"),
            (b"modules", []),
        ]
    )


@command("PING", -1)
def ping(client: Client, *words: bytes) -> Any:
    return words[0] if words else PONG


@command("ECHO", 2)
def echo(client: Client, text: bytes) -> bytes:
    return text


@command("AUTH", -2, alone=True)
def auth(client: Client, *words: bytes) -> Any:
    return OK


@command("SELECT", 2)
def select(client: Client, number: bytes) -> Any:
    if not 0 <= integer(number) < 16:
        raise Refusal("ERR DB index is out of range")
    client.select(integer(number))
    return OK


@command("QUIT", 1, alone=True)
def quit_(client: Client) -> Any:
    client.server.drop_soon(client)
    return OK


@command("ASKING", 1, alone=True)
def asking(client: Client) -> Any:
    client.asking = True
    return OK


# -- CLIENT


def _tracking(client: Client, switch: bytes, *options: bytes) -> Any:
    flags = {option.upper() for option in options}
    if flags - {b"OPTIN", b"NOLOOP"}:
        raise syntax()
    client.tracking = switch.upper() == b"ON"
    client.optin = client.tracking and b"OPTIN" in flags
    client.noloop = client.tracking and b"NOLOOP" in flags
    client.caching = False
    return OK


def _caching(client: Client, answer: bytes) -> Any:
    if not client.tracking:
        raise Refusal(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode "
            "with OPTIN or OPTOUT mode enabled"
        )
    if answer.upper() != b"YES":
        raise syntax()
    if not client.optin:
        raise Refusal("ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.")
    client.caching = True
    return OK


def _kill(client: Client, *words: bytes) -> Any:
    if len(words) == 1:
        words = (b"ADDR", words[0], b"SKIPME", b"no")
    filters = {name.upper(): value for name, value in zip(words[::2], words[1::2], strict=True)}
    skip_me = filters.pop(b"SKIPME", b"yes").lower() == b"yes"
    killed = 0
    for other in list(client.server.clients.values()):
        if (
            (other is client and skip_me)
            or (b"ID" in filters and other.id != integer(filters[b"ID"]))
            or (b"ADDR" in filters and other.address.encode() != filters[b"ADDR"])
            or (b"TYPE" in filters and filters[b"TYPE"].lower() == b"pubsub" and not other.channels)
        ):
            continue
        killed += 1
        if other is client:
            client.server.drop_soon(client)
        else:
            client.server.drop(other)
    return killed


def _setname(client: Client, name: bytes) -> Any:
    client.name = name
    return OK


_CLIENT: dict[bytes, Any] = {
    b"ID": lambda client: client.id,
    b"INFO": lambda client: Verbatim((client.described() + "\n").encode()),
    b"LIST": lambda client, *_: Verbatim(
        "".join(other.described() + "\n" for other in client.server.clients.values()).encode()
    ),
    b"SETNAME": _setname,
    b"GETNAME": lambda client: client.name or None,
    b"SETINFO": lambda client, *_: OK,
    b"NO-EVICT": lambda client, *_: OK,
    b"TRACKING": _tracking,
    b"CACHING": _caching,
    b"KILL": _kill,
}


@command("CLIENT", -2, alone=True)
def client_(client: Client, word: bytes, *words: bytes) -> Any:
    run = _CLIENT.get(word.upper())
    if run is None:
        raise Refusal(f"ERR unknown subcommand '{word.decode()}'. Try CLIENT HELP.")
    return run(client, *words)


# -- transactions


@command("MULTI", 1, alone=True)
def multi(client: Client) -> Any:
    if client.queue is not None:
        raise Refusal("ERR MULTI calls can not be nested")
    client.queue, client.spoiled = [], False
    return OK


def enqueue(client: Client, words: tuple[bytes, ...]) -> Any:
    """A command between MULTI and EXEC."""
    assert client.queue is not None
    client.queue.append(words)
    return QUEUED


@command("DISCARD", 1, alone=True)
def discard(client: Client) -> Any:
    client.queue = None
    return OK


@command("EXEC", 1, alone=True)
def execute(client: Client) -> Any:
    queue, client.queue = client.queue, None
    if queue is None:
        raise Refusal("ERR EXEC without MULTI")
    if client.spoiled:
        raise Refusal("EXECABORT Transaction discarded because of previous errors.")
    replies: list[Any] = []
    for words in queue:
        try:
            replies.append(client.server.run(client, words))
        except Refusal as refusal:
            replies.append(refusal)
    return replies
