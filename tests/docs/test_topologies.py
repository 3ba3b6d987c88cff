"""The pages on topologies: the snippet that wants a Sentinel, and that each test which is named is there."""

from __future__ import annotations

import ast
import re
import types
from pathlib import Path
from typing import Any

import pytest

from tests.docs.markdown import read
from tests.docs.test_docs import ROOT
from tests.support.sentinels import Watched

CHOOSE = ROOT / "docs" / "how-to" / "choose-a-topology.md"
SENTINELS = '[("sentinel-1", 26379), ("sentinel-2", 26379), ("sentinel-3", 26379)]'


async def test_with_sentinel(tmp_path: Path) -> None:
    (block,) = [block for block in read(CHOOSE).blocks if block.language == "py"]
    assert SENTINELS in block.text
    async with Watched(tmp_path) as watched:
        text = block.text.replace(SENTINELS, f'[("127.0.0.1", {watched.sentinel.port})]')
        scope: dict[str, Any] = {}
        code = compile(text, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        await types.FunctionType(code, scope)()
        for client in (scope["client"], *scope["sentinel"].sentinels):
            await client.aclose()


@pytest.mark.parametrize(
    ("page", "fewest"),
    [("explanation/safety", 16), ("explanation/known-limits", 9), ("reference/server", 15)],
)
def test_the_tests_that_are_named_are_there(page: str, fewest: int) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").rpartition("## What servers do")[2]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    named = [row.split("|")[-2] for row in rows if "`" in row.split("|")[-2]]
    assert len(named) >= fewest
    for cell in named:
        files = re.findall(r"`((?:adversity|cli|lua|simulation|sync|unit)/[\w.]*)`", cell)
        assert files, cell
        sources = [source for file in files for source in sources_of(ROOT / "tests" / file)]
        text = "".join(source.read_text(encoding="utf-8") for source in sources)
        for label in re.findall(r"T-[A-Z]+-\d+", cell):
            assert label.lower().replace("-", "_") in text.lower().replace("-", "_"), f"{label} in {files}"


def sources_of(path: Path) -> list[Path]:
    return sorted(path.glob("*.py")) if path.is_dir() else [path]
