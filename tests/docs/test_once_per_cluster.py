"""The page on scheduled jobs: its crontab, and its table, of which each line has its test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aiolocks.testing import EmbeddedServer
from tests.adversity.test_once_per_cluster import RECIPES
from tests.docs.markdown import read
from tests.docs.test_docs import ROOT, URL

PAGE = ROOT / "docs" / "how-to" / "once-per-cluster.md"


def crontab(server: EmbeddedServer) -> str:
    """The command that cron gives to the shell, of the line that the page shows; for this server."""
    (block,) = [block for block in read(PAGE).blocks if block.title == "crontab"]
    variable, line = block.text.replace(URL, server.url).splitlines()
    return f"{variable} {line.split(maxsplit=5)[5]}"


@pytest.mark.long
@pytest.mark.thin
@pytest.mark.parametrize(("status", "outcomes"), [(0, [0, 0, 0]), (3, [1, 0, 0])])
def test_the_crontab_runs_it_on_one_of_three_machines(
    tmp_path: Path, status: int, outcomes: list[int]
) -> None:
    """Each starts it when the one before has ended. A failure is for cron to report, on one machine."""
    (tmp_path / "backup.sh").write_text(f"#!/bin/sh\necho ran >>runs\nexit {status}\n")
    (tmp_path / "backup.sh").chmod(0o755)
    program = f'"{sys.executable}" -m aiolocks run'
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with EmbeddedServer() as server:
        line = crontab(server).replace("aiolocks run", program)
        ended = [
            subprocess.run(
                ["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, check=False
            ).returncode
            for _ in outcomes
        ]
    assert ended == outcomes
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_each_line_of_the_table_has_its_test() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(rows) == 11
    named = [re.fullmatch(r" `([\w/]+\.py)`, ([\w ]+) ", row.split("|")[-2]) for row in rows]
    recipes = set()
    for row, match in zip(rows, named, strict=True):
        assert match is not None, row
        file, label = match.groups()
        if file == "adversity/test_once_per_cluster.py":
            recipes.add(label)
        else:
            text = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert label.replace(" ", "_") in text, row
    assert recipes == set(RECIPES)
