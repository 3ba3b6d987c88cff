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


def app(
    session: Any, allow_release: AllowRelease | None = None, *, hosts: Collection[str] | None = None
) -> Dashboard:
    """An ASGI application that shows the locks of a session's prefix, live, in a browser.

    It shows holders, waiters and the tasks for which they wait, the time that others have waited for each
    holder, the oldest locks, where most was waited in the last hour, deadlocks, leaders, and the last ticks
    of schedules; and for each name a page of its own, with the holds that have ended while somebody looked.

    It looks at the server only while somebody looks at it: one sampler for all viewers, at most twice a
    second. Of very many names it reads those on the pages each time, and the others in turn.

    **All who can open it read every name and all metadata.** It has no login: mount it where your own
    authentication stands before it.

    Args:
        session: The `aiolocks.Session` whose locks are shown, or a client, whose default session serves. The
            session is yours to close. It is used on the event loop that serves the application.
        allow_release: Called with a `ReleaseRequest` before a lock is released by force; a function or a
            coroutine function. It returns True, or the name of the operator for the log; anything else
            refuses, and so does an exception. None: nothing can be released, and there is no button for it.
            Each request, also one that is refused, is logged at WARNING under `aiolocks.dashboard`.
        hosts: The names under which it is served, without a port. A request that names another one in its
            header `Host` is answered 421; one that names an address is served. Say them where nothing else
            stands before it that asks who its users are: a page of another site can make its own name mean
            this server, and read what a browser that reaches it may read. None: each name will do.

    Returns:
        The application. `await application.aclose()` ends its streams; it is needed only where a server waits
        for open connections when it shuts down.

    Raises:
        TypeError: An argument is wrong.
    """
    return Dashboard(session, allow_release, hosts)
