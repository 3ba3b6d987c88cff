"""Pages that were merged: the site has a page at the old address, which leads to the new one.

MkDocs loads this module as a hook.
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

MOVED = {
    "how-to/arq": "how-to/workers#in-arq",
    "explanation/how-a-lock-ends": "explanation/how-a-lock-is-kept",
    "how-to/cluster": "how-to/choose-a-topology#use-a-redis-cluster",
    "how-to/dashboard": "how-to/inspect#see-locks-in-a-browser",
    "how-to/deploy": "how-to/use-in-production",
    "how-to/latch": "how-to/turnstile#wait-for-all-of-them",
    "how-to/limits": "how-to/semaphore#limits",
    "how-to/multilock": "how-to/lock-variants#lock-several-names-at-once",
    "how-to/rangelock": "how-to/rwlock#lock-intervals",
    "how-to/redlock": "how-to/choose-a-topology#outlive-the-loss-of-a-server",
    "how-to/threads": "how-to/workers#threads-and-scripts",
    "how-to/when-redis-is-down": "how-to/use-in-production#when-redis-is-away",
    "reference/contrib-idempotency": "reference/contrib-frameworks#idempotency-keys",
    "reference/contrib-redis-py": "reference/sync#the-lock-of-redis-py",
    "reference/fencedregister": "reference/turnstile#fencedregister",
    "reference/rangelock": "reference/rwlock#rangelock",
    "reference/redlock": "reference/lock#redlock",
    "reference/schedule": "reference/leadership#schedule",
    "reference/semaphore": "reference/limits#semaphore",
    "reference/uniquejob": "reference/singleflight#uniquejob",
}
"""By the old address. An anchor of the old address is kept if the new one has none."""
_PAGE = """\
<!doctype html>
<html><head><meta charset="utf-8"><title>Moved</title><link rel="canonical" href="{to}">
<script>location.replace("{to}" + ("{to}".includes("#") ? "" : location.hash))</script>
<meta http-equiv="refresh" content="1; url={to}"></head>
<body>This page has moved: <a href="{to}">{to}</a></body></html>
"""


def on_post_build(config: Any, **_: Any) -> None:
    site = Path(config["site_dir"])
    for old, new in MOVED.items():
        page, mark, anchor = new.partition("#")
        to = f"{posixpath.relpath(page, old)}/{mark}{anchor}"
        (site / old).mkdir(parents=True, exist_ok=True)
        (site / old / "index.html").write_text(_PAGE.format(to=to), encoding="utf-8")
