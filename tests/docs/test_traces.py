"""The page on traces: its programs for Datadog and Sentry, in processes of their own, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiolocks.testing import EmbeddedServer
from tests.docs.markdown import read
from tests.docs.test_docs import ROOT, URL

PAGE = read(ROOT / "docs/how-to/traces.md")


@pytest.mark.parametrize("name", ["datadog_locks.py", "sentry_locks.py"])
def test_the_program_shows_the_spans_of_a_lock(name: str, running: EmbeddedServer, tmp_path: Path) -> None:
    if name.startswith("datadog"):
        pytest.importorskip("ddtrace", reason="too large for the group of the tests, and a plugin of pytest")
    else:
        pytest.importorskip("sentry_sdk")
    texts = {block.title: block.text for block in PAGE.blocks}
    (tmp_path / name).write_text(texts[name].replace(URL, running.url))
    quiet = {
        "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
        "DD_REMOTE_CONFIGURATION_ENABLED": "false",
        "DD_TRACE_OTEL_ENABLED": "true",  # as the page says
    }
    result = subprocess.run(
        [sys.executable, "-W", "ignore", name],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | quiet,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert result.returncode == 0, result.stderr
    assert "a listener failed" not in result.stderr
    assert result.stdout == texts[f"What {name} prints"]
