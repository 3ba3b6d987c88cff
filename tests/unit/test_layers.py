"""The arrows of the design go one way: the contracts of import-linter in pyproject.toml hold."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_import_contracts_hold() -> None:
    program = Path(sysconfig.get_path("scripts")) / "lint-imports"
    result = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
