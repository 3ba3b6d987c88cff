"""The dashboard as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any, Final, final
from urllib.parse import parse_qsl

from ..._logs import get_logger
from ..._tasks import spawn
from ...errors import SessionClosedError
from ...lock.engine import Engine
from ...lock.options import lock_name
from ...lock.sources import engine_of, source_of
from ...transport.steps.family import families, holdable
from ._http import (
    Receive,
    Scope,
    Send,
    answer_asset,
    answer_json,
    answer_text,
    assets,
    begin,
    names_host,
    path_of,
)
from ._release import AllowRelease, Releases
from ._sampler import Sampler
from ._views import DEFAULT_ROWS, MOST_ROWS, SORTS, Query, Viewer

log = get_logger("aiolocks.dashboard")

_PAGES: Final = {"/": "index.html", "/name": "name.html"}
_ASSETS: Final = "/assets/"
_ALIVE_EVERY: Final = 10.0
"""Seconds after which a stream on which nothing has happened says that it lives."""
_STREAM_LASTS: Final = 60.0
"""Seconds after which a stream ends and the browser opens another one: a shutdown waits for it."""
_PART: Final = 65_536
"""Bytes that are sent at once."""
_LONGEST_SEARCH: Final = 1_024


@final
class Dashboard:
    """Serves the pages, the streams and the release; see `app`.

    One belongs to one event loop at a time.
    """

    def __init__(
        self, session: Any, allow_release: AllowRelease | None, hosts: Collection[str] | None
    ) -> None:
        if allow_release is not None and not callable(allow_release):
            raise TypeError(f"allow_release must be a function or None, not {allow_release!r}")
        if hosts is not None and (isinstance(hosts, str) or not all(isinstance(one, str) for one in hosts)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f'hosts must be a collection of names, as ["locks.example.com"], not {hosts!r}')
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self._source = source_of(session)
        self._releases = Releases(allow_release)
        self._sampler = Sampler(self._engine, facts=self._facts, audit=self._releases.audit)

    def _engine(self) -> Engine:
        return engine_of(self._source)

    def _facts(self) -> dict[str, Any]:
        try:
            prefix = self._engine().settings.prefix
        except SessionClosedError:
            prefix = ""
        return {
            "prefix": prefix,
            "release": self._releases.possible,
            "holdable": holdable(),
            "kinds": [*families()],
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def aclose(self) -> None:
        """Ends all streams, so that a server can shut down at once. The next viewer starts it again."""
        await self._sampler.aclose()

    async def _live(self, receive: Receive, send: Send) -> None:
        """For a server that serves nothing else."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return
            await send({"type": "lifespan.startup.complete"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = path_of(scope), scope["method"]
        if self._hosts is not None and not names_host(scope, self._hosts):
            await answer_text(
                send, 421, "not served under this name: use the address that was announced for it"
            )
        elif path == "/release":
            if method != "POST":
                await answer_text(send, 405, "POST only", (b"allow", b"POST"))
                return
            await self._releases.serve(self._engine, scope, receive, send)
            self._sampler.soon()
        elif method not in ("GET", "HEAD"):
            await answer_text(send, 405, "GET only", (b"allow", b"GET, HEAD"))
        elif not path:
            # Its links are relative, so that they are right wherever it is mounted.
            last = str(scope.get("root_path", "")).rpartition("/")[2]
            await answer_text(send, 307, "see there", (b"location", f"{last}/".encode("latin-1", "ignore")))
        elif path in _PAGES:
            await answer_asset(send, _PAGES[path], head=method == "HEAD")
        elif path.startswith(_ASSETS) and (name := path.removeprefix(_ASSETS)) in assets():
            await answer_asset(send, name, head=method == "HEAD")
        elif path == "/events" and method == "GET":
            await self._stream(scope, receive, send)
        else:
            await answer_text(send, 404, "there is no such page", head=method == "HEAD")

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The changes of a page, as server-sent events, until its viewer has gone."""
        try:
            query = _query_of(scope)
            self._engine()
        except (ValueError, TypeError):
            await answer_text(send, 400, "the query is malformed: load the page again")
            return
        except SessionClosedError as error:
            await answer_json(send, 503, error=str(error))
            return
        with self._sampler.looking(query) as viewer:
            leaving = spawn(
                asyncio.get_running_loop(),
                _until_gone(receive, viewer),
                name="aiolocks-dashboard-viewer",
                context=None,
            )
            try:
                await _pass_on(viewer, send)
            except TimeoutError:
                log.info("a viewer of the dashboard takes nothing any more: its stream is ended")
            finally:
                leaving.cancel()
                await asyncio.wait([leaving])


async def _pass_on(viewer: Viewer, send: Send) -> None:
    head = begin(
        send, 200, b"text/event-stream", (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")
    )
    await viewer.takes(head)
    await _give(viewer, send, b"retry: 1000\n\n")
    until = asyncio.get_running_loop().time() + _STREAM_LASTS
    while asyncio.get_running_loop().time() < until:
        messages = await viewer.next(_ALIVE_EVERY)
        if messages is None:
            break
        await _give(viewer, send, messages or b": alive\n\n")
    with contextlib.suppress(OSError):  # it may have gone
        await viewer.takes(send({"type": "http.response.body", "body": b""}))


async def _give(viewer: Viewer, send: Send, body: bytes) -> None:
    """In parts: a server keeps a part that the viewer does not take, for as long as the connection lasts."""
    for start in range(0, len(body), _PART):
        part = body[start : start + _PART]
        await viewer.takes(send({"type": "http.response.body", "body": part, "more_body": True}))


async def _until_gone(receive: Receive, viewer: Viewer) -> None:
    message = await receive()
    while message.get("more_body", False):
        message = await receive()
    if message["type"] == "http.request":  # its body has ended
        message = await receive()
    if message["type"] == "http.disconnect":  # else a middleware gives the body again and again
        viewer.end()


def _query_of(scope: Scope) -> Query:
    """The page that a stream is asked for.

    Raises:
        ValueError, TypeError: There is no such page.
    """
    raw = bytes(scope.get("query_string", b"")).decode("ascii")
    asked = dict(parse_qsl(raw, keep_blank_values=True, max_num_fields=10, errors="strict"))
    kind = asked.get("kind", "")
    if "name" in asked:
        if kind not in families():
            raise ValueError("no such kind")
        return Query(place=(kind, lock_name(asked["name"])))
    if kind and kind not in families():
        raise ValueError("no such kind")
    sort, rows = asked.get("sort") or SORTS[0], int(asked.get("rows") or DEFAULT_ROWS)
    if sort not in SORTS or not 1 <= rows <= MOST_ROWS:
        raise ValueError("no such order")
    text = asked.get("text", "").lower()
    if len(text) > _LONGEST_SEARCH:
        raise ValueError("too long")
    return Query(text=text, kind=kind, sort=sort, rows=rows)
