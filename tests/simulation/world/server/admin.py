"""The commands to the server as a whole."""

from __future__ import annotations

from typing import Any

from .numbers import integer
from .registry import WRITE, command
from .replies import OK, Pairs, Refusal, Status, Verbatim
from .session import Client


@command("TIME", 1)
def time(client: Client) -> list[bytes]:
    seconds, microseconds = divmod(client.server.now_us, 1_000_000)
    return [b"%d" % seconds, b"%d" % microseconds]


@command("FLUSHALL FLUSHDB", -1, WRITE, keys="none")
def flush(client: Client, *_: bytes) -> Any:
    client.server.flush()
    return OK


@command("INFO", -1)
def info(client: Client, *sections: bytes) -> Verbatim:
    server = client.server
    everything = {
        b"server": {
            "redis_version": server.version,
            "redis_mode": "standalone" if server.slots is None else "cluster",
            "run_id": server.run_id,
            "tcp_port": 6379,
        },
        b"clients": {"connected_clients": len(server.clients)},
        b"memory": {
            "used_memory": server.used_memory,
            "maxmemory": server.settings["maxmemory"],
            "maxmemory_policy": server.settings["maxmemory-policy"],
        },
        b"persistence": {"loading": int(server.loading)},
        b"replication": server.replication(),
        b"keyspace": {
            f"db{store.number}": f"keys={len(store.values)},expires={len(store.ends)},avg_ttl=0"
            for store in server.stores.values()
            if store.values
        },
    }
    wanted = {section.lower() for section in sections} - {b"default", b"all", b"everything"} or set(
        everything
    )
    lines: list[str] = []
    for section, fields in everything.items():
        if section in wanted:
            lines += [
                f"# {section.decode().capitalize()}",
                *(f"{name}:{value}" for name, value in fields.items()),
                "",
            ]
    return Verbatim("\r\n".join(lines).encode())


@command("CONFIG", -2, alone=True)
def config(client: Client, word: bytes, *words: bytes) -> Any:
    server, action = client.server, word.upper()
    if action == b"GET":
        return Pairs(
            (name.encode(), str(value).encode())
            for name, value in sorted(server.settings.items())
            if name.encode() in words or words == (b"*",)
        )
    if action == b"SET":
        for name, value in zip(words[::2], words[1::2], strict=True):
            if name.decode() not in server.settings:
                raise Refusal(f"ERR Unknown option or number of arguments for CONFIG SET - '{name.decode()}'")
            server.configure(name.decode(), value.decode())
        return OK
    return OK  # RESETSTAT, REWRITE


@command("ROLE", 1)
def role(client: Client) -> Any:
    if client.server.master is None:
        return [b"master", 0, []]
    return [b"slave", b"simulated", 6379, b"connected", 0]


@command("WAIT", 3, alone=True)
def wait(client: Client, replicas: bytes, timeout: bytes) -> int:
    return client.server.acknowledged(integer(replicas), integer(timeout))


@command("COMMAND", -1)
def command_(client: Client, *_: bytes) -> Any:
    return []


@command("SHUTDOWN", -1, alone=True)
def shutdown(client: Client, *_: bytes) -> Any:
    raise Refusal("ERR not here")


@command("DEBUG", -2, alone=True)
def debug(client: Client, *_: bytes) -> Any:
    return Status(b"OK")
