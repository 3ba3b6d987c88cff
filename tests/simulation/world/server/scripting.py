"""EVAL, EVALSHA and SCRIPT."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

from . import lua
from .numbers import integer
from .registry import COMMANDS, READ, WRITE, command
from .replies import OK, Refusal
from .session import Client


@lru_cache(maxsize=1024)
def digest(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()


def _run(client: Client, text: bytes, words: tuple[bytes, ...]) -> Any:
    count = integer(words[0])
    if count > len(words) - 1:
        raise Refusal("ERR Number of keys can't be greater than number of args")
    if count < 0:
        raise Refusal("ERR Number of keys can't be negative")
    server = client.server
    if server.on_script is not None:
        server.on_script(client, text, words)
    return execute(client, text, words)


def execute(client: Client, text: bytes, words: tuple[bytes, ...]) -> Any:
    """Runs it: `words` are the number of keys, the keys and the arguments."""
    server = client.server
    count = integer(words[0])
    keys = words[1 : 1 + count]
    oom = server.out_of_memory
    written = False
    seen = server.tracks_all_keys
    tracked = client.tracking and (client.caching or not client.optin)

    def inside(request: tuple[bytes, ...]) -> Any:
        nonlocal written
        called = COMMANDS.get(request[0]) or COMMANDS.get(request[0].upper())
        if called is None:
            raise Refusal("ERR Unknown Redis command called from script")
        if called.alone:
            raise Refusal("ERR This Redis command is not allowed from script")
        if not called.least <= len(request) <= called.most:
            raise Refusal("ERR Wrong number of args calling Redis command from script")
        if server.slots is not None:
            server.slots.check_inside(client, called.keys_of(request))
        if called.kind == WRITE:
            server.check_writable()
            if oom and called.grows and not written:
                raise Refusal("OOM command not allowed when used memory > 'maxmemory'.")
            written = True
        elif tracked and called.kind == READ:
            try:
                return called.run(client, *request[1:])
            finally:
                server.tracking.remember(client, keys if seen else called.keys_of(request))
        return called.run(client, *request[1:])

    return lua.run(text, keys, words[1 + count :], inside)


@command("EVAL", -3, keys="script", alone=True)
def eval_(client: Client, text: bytes, *words: bytes) -> Any:
    lua.load(text)
    client.server.scripts[digest(text)] = text
    return _run(client, text, words)


@command("EVALSHA", -3, keys="script", alone=True)
def evalsha(client: Client, sha: bytes, *words: bytes) -> Any:
    text = client.server.scripts.get(sha.lower())
    if text is None:
        raise Refusal("NOSCRIPT No matching script. Please use EVAL.")
    return _run(client, text, words)


@command("SCRIPT", -2, alone=True)
def script(client: Client, word: bytes, *words: bytes) -> Any:
    scripts, action = client.server.scripts, word.upper()
    if action == b"LOAD":
        lua.load(words[0])
        scripts[digest(words[0])] = words[0]
        return digest(words[0])
    if action == b"EXISTS":
        return [int(sha.lower() in scripts) for sha in words]
    if action == b"FLUSH":
        scripts.clear()
        return OK
    if action == b"KILL":
        raise Refusal("NOTBUSY No scripts in execution right now.")
    raise Refusal(f"ERR unknown subcommand '{word.decode()}'. Try SCRIPT HELP.")
