"""A page that shows the holders and the waiters of each lock: an ASGI application to mount or to serve.

```python
from aiolocks.contrib import dashboard

app.mount("/locks", dashboard.app(session))
```
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ._application import Dashboard
from ._release import AllowRelease, ReleaseRequest

__all__ = ["Dashboard", "ReleaseRequest", "app"]


def __dir__() -> list[str]:
    """The public names alone."""
    return [*__all__]


def app(
    session: Any, allow_release: AllowRelease | None = None, *, hosts: Collection[str] | None = None
) -> Dashboard:
    """An ASGI application that shows the locks of a session's prefix in a browser, and updates the page.

    It shows the holders, the waiters, the tasks that they wait for, how long other tasks have waited for each
    holder, the oldest locks, the names with the longest waits of the last hour, deadlocks, leaders, and the
    last ticks of schedules. Each name has its own page, with the holds that ended while a viewer was looking.

    The dashboard reads the server only while it has a viewer: one sampler serves all viewers, at most twice a
    second. If there are very many names, each sample reads the names on the open pages, and the other names
    in turn.

    **Everybody who can open the page can read every name and all metadata.** The dashboard has no login:
    mount it behind your own authentication.

    Args:
        session: The `aiolocks.Session` whose locks are shown, or a client, whose default session is used. You
            close it. It is used on the event loop that serves the application.
        allow_release: A function or coroutine function that is called with a `ReleaseRequest` before a lock
            is released by force. To allow the release, it returns True, or the name of the operator for the
            log. Any other result, and an exception, refuses it. Each release, and each refusal by this
            function, is logged at `WARNING` under `aiolocks.dashboard`. Default None: no lock can be
            released, and there is no button.
        hosts: The host names under which the dashboard is served, without a port. A request with another name
            in its `Host` header is answered 421; a request with an IP address is served. Give it if no login
            stands before the dashboard. Otherwise a page of another site can let its own host name point to
            this server (DNS rebinding), and read the dashboard in the browser of a person who can reach it.
            Default None: any name is accepted.

    Returns:
        The application. `await application.aclose()` ends its streams. Call it only if your server waits for
        open connections when it shuts down.

    Raises:
        TypeError: An argument is wrong.
    """
    return Dashboard(session, allow_release, hosts)
