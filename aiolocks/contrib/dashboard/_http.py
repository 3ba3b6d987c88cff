"""Requests and answers of ASGI, as far as the dashboard needs them."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable, Container, MutableMapping
from functools import cache
from importlib import resources
from typing import Any, Final, NamedTuple

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

Headers = tuple[tuple[bytes, bytes], ...]

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""Scripts and styles come from files of the dashboard alone, and no text ever becomes one."""

_SECURITY: Final[Headers] = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

_TYPES: Final = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}


class Asset(NamedTuple):
    """A file that is served."""

    body: bytes
    type: bytes


@cache
def assets() -> dict[str, Asset]:
    """All files of the dashboard, by name: nothing else can be asked for."""
    return {
        file.name: Asset(file.read_bytes(), _TYPES[file.name.rpartition(".")[2]])
        for file in (resources.files("aiolocks.contrib.dashboard") / "assets").iterdir()
        if file.name.rpartition(".")[2] in _TYPES
    }


def path_of(scope: Scope) -> str:
    """The path below the one under which the dashboard is mounted; servers differ in which they give.

    The path may begin with all of `root_path`. Behind a proxy that strips a part of it, the path begins with
    the rest, to which the application has mounted it.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    for mounted in (root, root.removeprefix(scope.get("app_root_path", ""))):
        if mounted and (path == mounted or path.startswith(f"{mounted}/")):
            return path[len(mounted) :]
    return path


def names_host(scope: Scope, hosts: Container[str]) -> bool:
    """Whether a request names one of these hosts, or an address: a page of another site cannot.

    Such a page can make its own name mean the address of the dashboard, and is of the same origin then.
    """
    named = header(scope, b"host")
    host = named.partition("]")[0].removeprefix("[") if named.startswith("[") else named.partition(":")[0]
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.lower() in hosts
    return True


def header(scope: Scope, name: bytes) -> str:
    """One header; empty if it is not there."""
    found = (bytes(value) for key, value in scope["headers"] if bytes(key).lower() == name)
    return next(found, b"").decode("latin-1")


async def body_of(receive: Receive, most: int) -> bytes | None:
    """The body of a request; None if it is longer than that, or the client has hung up."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part: bytes = message.get("body", b"")
        body += part
        if len(body) > most:
            return None
        if not message.get("more_body", False):
            return body


async def begin(send: Send, status: int, type: bytes, *more: tuple[bytes, bytes]) -> None:  # noqa: A002 - the header's word
    """The head of an answer."""
    headers = [(b"content-type", type), *_SECURITY, *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def answer(
    send: Send,
    status: int,
    body: bytes,
    type: bytes,  # noqa: A002 - the header's word
    *more: tuple[bytes, bytes],
    head: bool = False,
) -> None:
    """A whole answer; `head` leaves out the body."""
    await begin(send, status, type, (b"content-length", str(len(body)).encode()), *more)
    await send({"type": "http.response.body", "body": b"" if head else body})


async def answer_asset(send: Send, name: str, *, head: bool) -> None:
    """A file; browsers ask for it again, for a new version may have been installed."""
    asset = assets()[name]
    await answer(send, 200, asset.body, asset.type, (b"cache-control", b"no-cache"), head=head)


async def answer_json(send: Send, status: int, *more: tuple[bytes, bytes], **fields: Any) -> None:
    """A document."""
    body = json.dumps(fields).encode()
    await answer(send, status, body, b"application/json", (b"cache-control", b"no-store"), *more)


async def answer_text(
    send: Send, status: int, text: str, *more: tuple[bytes, bytes], head: bool = False
) -> None:
    """A line for the client that asked."""
    await answer(send, status, f"{text}\n".encode(), b"text/plain; charset=utf-8", *more, head=head)
