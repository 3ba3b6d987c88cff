"""Neither framework is needed where it is not used."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize("framework", ["fastapi", "starlette", "aiohttp"])
def test_the_import_says_what_to_install(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = "aiohttp" if framework == "aiohttp" else "fastapi"
    module = f"aiolocks.contrib.{extra}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == framework]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, framework, None)  # as if it were not there
    with pytest.raises(ModuleNotFoundError, match=rf"needs \w+: pip install 'aiolocks\[{extra}\]'$"):
        importlib.import_module(module)


def test_neither_is_imported_by_aiolocks() -> None:
    code = (
        "import sys, aiolocks, aiolocks.contrib._holding, aiolocks.contrib.idempotency; "
        "print({'fastapi', 'starlette', 'pydantic', 'aiohttp', 'sqlalchemy'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


def test_the_store_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "aiolocks.contrib.idempotency.sqlalchemy"
    monkeypatch.delitem(sys.modules, module, raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "sqlalchemy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs SQLAlchemy: pip install 'aiolocks\[sqlalchemy\]'$"):
        importlib.import_module(module)
