"""Neither framework is needed where it is not used."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize("framework", ["fastapi", "starlette", "aiohttp"])
@pytest.mark.parametrize("package", ["aiolocks.contrib", "aiolocks.contrib.idempotency"])
def test_the_import_says_what_to_install(
    package: str, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = "aiohttp" if framework == "aiohttp" else "fastapi"
    module = f"{package}.{extra}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == framework]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, framework, None)  # as if it were not there
    with pytest.raises(
        ModuleNotFoundError, match=rf"^{module} needs \w+: pip install '\.\[{extra}\]' in a clone"
    ):
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
    with pytest.raises(ModuleNotFoundError, match=r"needs SQLAlchemy: pip install '\.\[sqlalchemy\]'"):
        importlib.import_module(module)


@pytest.mark.parametrize(
    "module",
    [
        *(
            "aiohttp",
            "asyncpg",
            "dashboard",
            "fastapi",
            "opentelemetry",
            "prometheus",
            "psycopg",
            "redis_py",
            "sqlalchemy",
        ),
        *("idempotency", "idempotency.aiohttp", "idempotency.fastapi", "idempotency.sqlalchemy"),
    ],
)
def test_a_module_shows_its_public_names_alone(module: str) -> None:
    found = importlib.import_module(f"aiolocks.contrib.{module}")
    assert dir(found) == sorted(found.__all__)
    assert all(hasattr(found, name) for name in dir(found))
