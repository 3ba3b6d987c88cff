"""The arrows of the design go one way: the contracts of import-linter in pyproject.toml hold, and no ring.

A ring is forbidden between packages, and at run time between files: one state, one file.
"""

from __future__ import annotations

import ast
import subprocess
import sysconfig
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

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


def imports(*, annotations: bool) -> dict[str, set[str]]:
    """Of each module, also those in functions; and with `annotations`, those for a type checker alone."""
    import grimp

    graph = grimp.build_graph("aiolocks", cache_dir=None, exclude_type_checking_imports=not annotations)
    found = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert sum(map(len, found.values())) > 900, "the imports were found"
    return found


def package(module: str) -> str:
    """That it is in, such as `aiolocks.lock`; or itself, where it stands beside them."""
    return ".".join(module.split(".")[:2])


def test_no_packages_know_each_other_not_even_by_annotations() -> None:
    packages: dict[str, set[str]] = {}
    for module, found in imports(annotations=True).items():
        # The package as a whole imports what it shows of its parts.
        known = packages.setdefault(package(module), set())
        known |= {package(one) for one in found if one != "aiolocks"} - {package(module)}
    assert len(packages) > 10
    ring = rings(packages)
    assert not ring, " -> ".join(ring)


def test_no_files_import_each_other() -> None:
    """Not by imports in functions either: what changes together stands in one file. An annotation may name
    a class of the same package."""
    found = imports(annotations=False)
    ring = rings({module: found - {"aiolocks"} for module, found in found.items()})
    assert not ring, " -> ".join(ring)


# Protocols are for users, who write a class of their own, or for several classes of ours.
FOR_USERS = {
    "aiolocks.contrib.asyncpg.Connection",
    "aiolocks.contrib.idempotency._store.Store",
    "aiolocks.contrib.idempotency._store.Transaction",
    "aiolocks.kinds.serializers.Serializer",
    "aiolocks.lock.sources.AsyncClient",
}
OF_SEVERAL = {
    "aiolocks.kinds.schedule.plan.Dues",  # of each way to say when
    "aiolocks.lock.engine.Waiting",  # Acquiring, Possession, and the waits of Latch and RateLimit
    "aiolocks.lock.renewal.Listening",  # Watch and Tenure
    "aiolocks.lock.wakeups._Ringing",  # all answers that tell of bells
    "aiolocks.transport.steps.base._Belled",  # the steps of each kind that waits
    "aiolocks.transport.connection.Fallback",  # Multiplexed and Serial
    "aiolocks.transport.request.Transport",
    "aiolocks.transport.tls.Connecting",  # the pools of redis-py and of valkey-py
}
MOST_WITH_ONE_CLASS = 4
"""Of a class in a package that this one may not know."""


def protocols() -> set[str]:
    """Those that have more to them than a call."""
    found: set[str] = set()
    for path in (ROOT / "aiolocks").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
                is_call = [one.name for one in node.body if isinstance(one, ast.FunctionDef)] == ["__call__"]
                if "Protocol" in bases and not is_call:
                    found.add(f"{module}.{node.name}")
    return found


def test_a_protocol_is_for_users_or_for_several_classes() -> None:
    found = protocols()
    known = FOR_USERS | OF_SEVERAL
    assert known <= found
    assert len(found - known) <= MOST_WITH_ONE_CLASS, found - known


def test_a_ring_would_be_found() -> None:
    assert rings({"a": {"b"}, "b": {"c"}, "c": {"a"}})
