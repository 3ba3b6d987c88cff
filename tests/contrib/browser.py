"""Chromium without a screen, driven over its devtools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.waiting import eventually

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_SWITCHES = (
    "--headless=new",
    "--no-sandbox",  # as root there is none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class DevtoolsError(Exception):
    """The browser could not do that, as where the page has just been left."""


class Tab:
    """One page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.complaints: list[str] = []
        self.urls: list[str] = []

    async def listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if told.get("id") in self._answers:
                self._answers.pop(told["id"]).set_result(told)
            elif told.get("method") == "Log.entryAdded":
                self.complaints.append(told["params"]["entry"]["text"])
            elif told.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["params"]["exceptionDetails"])[:2_000])
            elif told.get("method") == "Page.javascriptDialogOpening":
                self.complaints.append(f"alert: {told['params']['message']}")
            elif told.get("method") == "Network.requestWillBeSent":
                self.urls.append(told["params"]["request"]["url"])

    async def call(self, method: str, **params: Any) -> Any:
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(30):
            told = await answer
        if "error" in told:
            raise DevtoolsError(told["error"]["message"])
        return told["result"]

    async def shows(self, url: str, *, width: int, dark: bool) -> None:
        """Opens a page, on a screen of that width."""
        self.complaints.clear()
        phone = width < 700
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=844 if phone else 900, deviceScaleFactor=1, mobile=phone,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """The value of an expression there, which may be a promise."""
        told = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, script: str, *, within: float = 15) -> None:
        """Returns when the expression is true there."""
        async with asyncio.timeout(within):
            while True:
                with suppress(DevtoolsError):
                    if await self.run(f"Boolean({script})"):
                        return
                await asyncio.sleep(0.02)

    async def press(self, key: str, *, text: str = "") -> None:
        more = {"text": text} if text else {}
        code = {"Tab": 9, "Enter": 13, "Escape": 27}.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                **(more if kind == "keyDown" else {}),
            )  # fmt: skip

    async def picture(self, file: Path, *, whole: bool = False) -> None:
        told = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await asyncio.to_thread(file.write_bytes, base64.b64decode(told["data"]))


@asynccontextmanager
async def browser(directory: Path) -> AsyncIterator[Tab]:
    """Chromium with one tab, which keeps what it needs in that directory."""
    assert CHROMIUM is not None
    program = (CHROMIUM, *_SWITCHES, f"--user-data-dir={directory}", "about:blank")
    process = await asyncio.create_subprocess_exec(*program, stdout=DEVNULL, stderr=DEVNULL)
    try:
        told = directory / "DevToolsActivePort"
        await eventually(lambda: told.exists() and told.read_text().count("\n"), within=30)
        port = told.read_text().split()[0]
        async with aiohttp.ClientSession() as http:
            async with http.get(f"http://127.0.0.1:{port}/json/list") as answer:
                (page,) = [one for one in await answer.json() if one["type"] == "page"]
            async with http.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                listening = asyncio.create_task(tab.listen())
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await tab.call(f"{domain}.enable")
                yield tab
                listening.cancel()
                await asyncio.wait([listening])
    finally:
        process.terminate()
        await process.wait()
