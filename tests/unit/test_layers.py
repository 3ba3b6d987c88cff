"""The arrows of the design go one way: the contracts of import-linter in pyproject.toml hold, and no ring."""

from __future__ import annotations

import subprocess
import sysconfig
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]


def test_import_contracts_hold() -> None:
    program = Path(sysconfig.get_path("scripts")) / "lint-imports"
    result = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def rings(imports: dict[str, set[str]]) -> list[str]:
    """A ring of imports, if there is one."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        ring: list[str] = error.args[1]
        return ring
    return []


def test_no_files_know_each_other_not_even_by_annotations_or_by_imports_in_functions() -> None:
    graph = grimp.build_graph("aiolocks", cache_dir=None)  # counts all of them
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert sum(map(len, imports.values())) > 1000, "the imports were found"
    # A package as a whole imports what it shows of its files.
    ring = rings({module: found - {"aiolocks"} for module, found in imports.items()})
    assert not ring, " -> ".join(ring)


def test_a_ring_would_be_found() -> None:
    assert rings({"a": {"b"}, "b": {"c"}, "c": {"a"}})
