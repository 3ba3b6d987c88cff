"""An ASGI application as its server calls it, without one: whole answers, and streams that go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def document(self) -> Any:
        return json.loads(self.body)


def scope_of(url: str, method: str, headers: Mapping[str, str], **more: Any) -> dict[str, Any]:
    path, _, query = url.partition("?")
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("192.0.2.7", 4711),
        **more,
    }


async def ask(
    app: Any,
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    **more: Any,
) -> Answer:
    """One request and its whole answer."""
    answer = Answer()
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if asked:
            await asyncio.Event().wait()
        asked = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message.get("body", b"")

    await app(scope_of(url, method, headers or {}, **more), receive, send)
    return answer


class Stream:
    """Server-sent events, put together as the page does."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.messages: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}
        self.sections: dict[str, dict[str, dict[str, Any]]] = {}
        self.raw = b""
        self.ended = False
        self._news = asyncio.Event()
        self.gone = asyncio.Event()

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.answer.status = message["status"]
            self.answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        self.raw += message.get("body", b"")
        *events, self.raw = self.raw.split(b"\n\n")
        for event in events:
            if event.startswith(b"data: "):
                self._merge(json.loads(event.removeprefix(b"data: ")))
        self.ended = not message.get("more_body", False)
        self._news.set()

    def _merge(self, told: dict[str, Any]) -> None:
        self.messages.append(told)
        if told["whole"]:
            self.sections = {}
        self.facts |= told["facts"]
        for name, change in told["sections"].items():
            known = self.sections.get(name, {}) | {row["id"]: row for row in change["rows"]}
            self.sections[name] = {one: known[one] for one in change.get("order", known)}

    def rows(self, section: str) -> list[dict[str, Any]]:
        return list(self.sections.get(section, {}).values())

    def names(self, section: str = "locks") -> list[str]:
        return [row["name"] for row in self.rows(section)]

    async def until(self, holds: Callable[[], object], *, within: float = 10) -> None:
        async with asyncio.timeout(within):
            while not holds():
                self._news.clear()
                await self._news.wait()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


@asynccontextmanager
async def stream(app: Any, url: str) -> AsyncIterator[Stream]:
    """Somebody looks, and leaves."""
    looking = Stream()
    serving = asyncio.create_task(app(scope_of(url, "GET", {}), looking.receive, looking.send))
    try:
        yield looking
    finally:
        looking.gone.set()
        await serving


class ReadsFirst:
    """A middleware as many write it, that reads the body, and gives it again at each call of `receive`."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", scope["type"] == "http"
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)

        async def again() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, again if scope["type"] == "http" else receive, send)
