"""The dashboard in Chromium, on a wide screen and on a phone, light and dark: only with `-m soak`.

`AIOLOCKS_AXE` names a file `axe.min.js` (of `npm pack axe-core`), by which the pages are checked for
people who do not see them; without it, that part is left out. `AIOLOCKS_PICTURES` names a directory for
pictures.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Session
from aiolocks.contrib import dashboard
from aiolocks.transport.keys import key
from tests.contrib.browser import CHROMIUM, Tab, browser
from tests.contrib.serving import uvicorn_serves
from tests.contrib.test_dashboard import EVIL

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, as of Debian's package chromium"),
]

SCREENS = [(width, dark) for width in (1_440, 390) for dark in (False, True)]
LIVE = "document.getElementById('state')?.textContent === 'live'"
ROWS = "document.querySelectorAll('#locks tbody tr').length"


@pytest.fixture
async def tab(tmp_path: Path) -> AsyncIterator[Tab]:
    async with browser(tmp_path / "chromium") as tab:
        yield tab


@asynccontextmanager
async def served(session: Session, allow_release: Any = None) -> AsyncIterator[str]:
    app = dashboard.app(session, allow_release)
    async with uvicorn_serves(app) as url:
        yield url
        await app.aclose()


@asynccontextmanager
async def many(redis: Redis, number: int) -> AsyncIterator[None]:
    """That number of locks, as their holders write them."""
    locks = [key("aiolocks", "lock", f"order:{at:05}") for at in range(number)]
    granted = int((time.time() - 60) * 1e6)
    async with redis.pipeline(transaction=False) as pipeline:
        for at, lock in enumerate(locks):
            described = f'{{"host":"worker-{at % 7}","pid":{4_000 + at},"task":"ship","user":{{}}}}'
            pipeline.set(lock, f"{at:032x}:{granted + at}:{described}", px=300_000)
        await pipeline.execute()
    yield
    if locks:
        await redis.delete(*locks)


def picture(name: str) -> Path | None:
    directory = os.environ.get("AIOLOCKS_PICTURES")
    return Path(directory, f"{name}.png") if directory else None


async def looks_right(tab: Tab, url: str, name: str) -> None:
    """No error, nothing of another host, nothing wider than the screen, and no serious finding of axe."""
    assert tab.complaints == []
    assert [one for one in tab.urls if not one.startswith((url, "about:", "data:"))] == []
    assert await tab.run("document.documentElement.scrollWidth - innerWidth") <= 0
    if (file := picture(name)) is not None:
        await tab.picture(file)
    if axe := os.environ.get("AIOLOCKS_AXE"):
        await tab.run(await asyncio.to_thread(Path(axe).read_text) + "; 1")
        script = """axe.run(document, {resultTypes: ['violations']}).then(found => found.violations
            .filter(one => ['serious', 'critical'].includes(one.impact))
            .map(one => one.id + ': ' + one.nodes.slice(0, 3).map(at => at.html + at.failureSummary)))"""
        assert await tab.run(script) == []


@pytest.mark.parametrize("number", [0, 10, 10_000])
async def test_pages_of_so_many_locks(tab: Tab, session: Session, redis: Redis, number: int) -> None:
    async with served(session, lambda request: True) as url, many(redis, number):
        for width, dark in SCREENS:
            name = f"{number}-{width}-{'dark' if dark else 'light'}"
            await tab.shows(f"{url}/", width=width, dark=dark)
            await tab.until(f"{LIVE} && {ROWS} === {min(number, 50 if width > 700 else 20)}")
            await tab.until(
                f"document.querySelector('[data-total=names]').textContent === '{number:,}'", within=60
            )
            await looks_right(tab, url, f"overview-{name}")
            held = await tab.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] < 128")
            assert held is dark
            if number == 10:
                await tab.run("document.querySelector('#locks tbody a').click()")
                await tab.until(f"{LIVE} && document.querySelectorAll('#holders li').length === 1")
                await looks_right(tab, url, f"name-{name}")
        if number == 10_000:
            await tab.press("/", text="/")
            assert await tab.run("document.activeElement.id") == "text"
            await tab.call("Input.insertText", text="ORDER:09876")
            await tab.until(
                f"{ROWS} === 1 && document.querySelector('#locks tbody a').textContent === 'order:09876'"
            )


async def test_a_hand_over_is_seen_soon(tab: Tab, session: Session, redis: Redis) -> None:
    took: list[float] = []
    async with served(session) as url, Session(redis) as other, many(redis, 10_000):
        await tab.shows(f"{url}/?", width=1_440, dark=False)
        lease = await Lock(session, "order:xxxxx").acquire()
        for then in (other, session, other, session, other):
            waiting = asyncio.create_task(Lock(then, "order:xxxxx").acquire())
            row = "document.querySelector('#locks tbody tr:first-child')"
            await tab.until(
                f"{row}?.textContent.includes('order:xxxxx') && {row}.className === 'busy'", within=60
            )
            before = await tab.run(f"{row}.querySelector('[data-since]').dataset.since")
            begun = time.monotonic()
            await lease.release()
            await tab.until(f"{row}.querySelector('[data-since]')?.dataset.since !== '{before}'")
            took.append(time.monotonic() - begun)
            lease = await waiting
        await lease.release()
    assert max(took) < 5, took


async def test_a_release_by_keyboard_with_and_without_permission(tab: Tab, session: Session) -> None:
    allowed = False
    async with served(session, lambda request: allowed) as url:
        for width, dark in SCREENS:
            lease = await Lock(session, "order:17", metadata={"customer": "Ada"}).acquire()
            for allowed, said in ((False, "It was not released: you may not"), (True, "It was released.")):
                await tab.shows(f"{url}/name?kind=lock&name=order%3A17", width=width, dark=dark)
                await tab.until(f"{LIVE} && !document.getElementById('release').hidden")
                await tab.run("document.getElementById('release').focus()")
                await tab.press("Enter", text="\r")
                await tab.until("document.getElementById('confirm').open")
                await looks_right(tab, url, f"confirm-{width}-{dark}")
                assert await tab.run("document.activeElement.id") == "cancel"
                await tab.press("Escape")
                await tab.until("!document.getElementById('confirm').open")
                assert await lease.owned()
                await tab.press("Enter", text="\r")
                await tab.until("document.getElementById('confirm').open")
                await tab.press("Tab")
                assert await tab.run("document.activeElement.id") == "really"
                await tab.press("Enter", text="\r")
                await tab.until(f"document.getElementById('outcome').textContent.startsWith('{said}')")
                await tab.until("document.querySelectorAll('#audit li').length > 0")
                tab.complaints = [one for one in tab.complaints if "403" not in one]
                await looks_right(tab, url, f"released-{allowed}-{width}-{dark}")
            await lease.wait_lost()
            await tab.until("document.getElementById('release').hidden")
        await tab.shows(f"{url}/", width=390, dark=False)
        await tab.until("document.querySelectorAll('#audit li').length === 8")
    async with served(session) as url, Lock(session, "order:17"):
        await tab.shows(f"{url}/name?kind=lock&name=order%3A17", width=1_440, dark=False)
        await tab.until(f"{LIVE} && document.querySelectorAll('#holders li').length === 1")
        assert await tab.run("document.getElementById('release').hidden")


async def test_names_that_would_be_markup_stay_text(tab: Tab, session: Session) -> None:
    leases = [await Lock(session, name, metadata={name: name}).acquire() for name in EVIL]
    async with served(session) as url:
        for width, dark in SCREENS:
            await tab.shows(f"{url}/", width=width, dark=dark)
            await tab.until(f"{ROWS} === {len(EVIL)}")
            await looks_right(tab, url, f"evil-{width}-{dark}")
            shown = await tab.run(
                "[...document.querySelectorAll('#locks tbody a')].map(one => one.textContent)"
            )
            assert sorted(shown) == sorted(map(seen, EVIL))
            assert await tab.run("document.querySelectorAll('img, iframe, main script').length") == 0
        for at in range(len(EVIL)):
            await tab.shows(f"{url}/", width=390, dark=False)
            await tab.until(f"{ROWS} === {len(EVIL)}")
            await tab.run(f"document.querySelectorAll('#locks tbody a')[{at}].click()")
            await tab.until(f"{LIVE} && document.querySelectorAll('#holders li').length === 1")
            assert await tab.run("document.getElementById('name').textContent") in map(seen, EVIL)
            await looks_right(tab, url, f"evil-name-{at}")
    for lease in leases:
        await lease.release()


def seen(name: str) -> str:
    """The name as a page shows it."""
    letters = ("\\\\" if one == "\\" else one if one.isprintable() else escaped(one) for one in name)
    return "".join(letters)


def escaped(letter: str) -> str:
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
