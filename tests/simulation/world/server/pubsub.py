"""Channels, and the notifications of what happens to keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .keys import _pattern as pattern
from .registry import command
from .replies import Push
from .session import Client

if TYPE_CHECKING:
    from .server import Server

_CLASSES: dict[bytes, str] = {
    b"set": "$",
    b"append": "$",
    b"incrby": "$",
    b"expired": "x",
    b"evicted": "e",
    b"hset": "h",
    b"hdel": "h",
    b"hincrby": "h",
    b"zadd": "z",
    b"zincr": "z",
    b"zrem": "z",
    b"zremrangebyscore": "z",
    b"rpush": "l",
    b"lpush": "l",
    b"sadd": "s",
}
"""Which letter of `notify-keyspace-events` an event belongs to; `g` for all others."""


def wanted(setting: str, event: bytes) -> bool:
    letter = _CLASSES.get(event, "g")
    return letter in setting or "A" in setting


def announce(server: Server, channel: bytes, message: bytes) -> int:
    """Tells who listens; how many were told."""
    told = 0
    for client in [server.clients[number] for number in sorted(server.listening)]:
        if channel in client.channels:
            client.say(Push([b"message", channel, message]))
            told += 1
        for glob in sorted(client.patterns):
            if pattern(glob).match(channel):
                client.say(Push([b"pmessage", glob, channel, message]))
                told += 1
    return told


def _answer(client: Client, what: bytes, names: tuple[bytes, ...], among: set[bytes], *, add: bool) -> None:
    for name in names:
        (among.add if add else among.discard)(name)
        client.say(Push([what, name, len(client.channels) + len(client.patterns)]))
    if not names:
        client.say(Push([what, None, len(client.channels) + len(client.patterns)]))
    listens = client.server.listening
    (listens.add if client.channels or client.patterns else listens.discard)(client.id)


@command("SUBSCRIBE", -2, alone=True, grows=True)
def subscribe(client: Client, *channels: bytes) -> object:
    _answer(client, b"subscribe", channels, client.channels, add=True)
    return NotImplemented


@command("UNSUBSCRIBE", -1, alone=True)
def unsubscribe(client: Client, *channels: bytes) -> object:
    _answer(client, b"unsubscribe", channels or tuple(sorted(client.channels)), client.channels, add=False)
    return NotImplemented


@command("PSUBSCRIBE", -2, alone=True, grows=True)
def psubscribe(client: Client, *patterns: bytes) -> object:
    _answer(client, b"psubscribe", patterns, client.patterns, add=True)
    return NotImplemented


@command("PUNSUBSCRIBE", -1, alone=True)
def punsubscribe(client: Client, *patterns: bytes) -> object:
    _answer(client, b"punsubscribe", patterns or tuple(sorted(client.patterns)), client.patterns, add=False)
    return NotImplemented


@command("SSUBSCRIBE", -2, alone=True, grows=True)
def ssubscribe(client: Client, *channels: bytes) -> object:
    if client.server.slots is not None:
        client.server.slots.check_channels(client, channels)
    for channel in channels:
        client.shards.add(channel)
        client.say(Push([b"ssubscribe", channel, len(client.shards)]))
    return NotImplemented


@command("SUNSUBSCRIBE", -1, alone=True)
def sunsubscribe(client: Client, *channels: bytes) -> object:
    channels = channels or tuple(sorted(client.shards))
    if client.server.slots is not None:
        client.server.slots.check_channels(client, channels)
    for channel in channels:
        client.shards.discard(channel)
        client.say(Push([b"sunsubscribe", channel, len(client.shards)]))
    return NotImplemented


def end_channels(server: Server) -> None:
    """Ends the subscriptions to channels of slots that the node does not serve any more, and says so."""
    for client in [client for client in server.clients.values() if client.shards]:
        for channel in sorted(filter(server.slots.has_lost, client.shards)):
            client.shards.discard(channel)
            client.say(Push([b"sunsubscribe", channel, len(client.shards)]))


@command("PUBLISH", 3)
def publish(client: Client, channel: bytes, message: bytes) -> int:
    return announce(client.server, channel, message)
