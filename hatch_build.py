"""The description on a package index: the README without what does not lead anywhere from there.

The project has no public address yet. A link into the repository would lead to a page that is not there, so
its text stands alone, and pictures are left out. With an address, links begin with it, and so does
`[project.urls]`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Description(MetadataHookInterface):
    """Called by hatchling, as `pyproject.toml` says."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds `readme`."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": described(text)}


def described(readme: str) -> str:
    """The same text, with only those links that lead somewhere from anywhere."""
    text = re.sub(r"^\[?!\[[^\]]*\]\([^)]*\)(\]\([^)]*\))?\n", "", readme, flags=re.MULTILINE)
    return re.sub(r"\[([^\]]*)\]\((?!https?://|#)[^)]*\)", r"\1", text)
