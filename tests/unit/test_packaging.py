"""The wheel and the sdist have what they should, and the wheel works far from the source tree."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
installed = pytest.mark.whole
"""Installs the wheel, for which four interpreters begin: `.ci/run` does so each time."""

ONE_LOCK = """
import asyncio
import aiolocks
from aiolocks import Lock
from aiolocks.testing import EmbeddedServer

async def main():
    async with EmbeddedServer() as server:
        client = server.client()
        async with Lock(client, "name") as lease:
            assert await Lock(client, "name").try_acquire() is None
            lease.ensure_held()
        assert not await Lock(client, "name").locked()

asyncio.run(main())
print(aiolocks.__version__, aiolocks.__file__)
"""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the sdist, built without isolation, for that would need a network."""
    directory = tmp_path_factory.mktemp("distributions")
    run(sys.executable, "-m", "hatchling", "build", "-d", str(directory), cwd=ROOT)
    return directory


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (wheel,) = distributions.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts directory of a new environment in which the wheel is installed."""
    directory = tmp_path_factory.mktemp("elsewhere")
    venv.create(directory, symlinks=True)
    paths = sysconfig.get_paths(vars={"base": str(directory), "platbase": str(directory)})
    # The dependencies are those of this environment. Behind the wheel on the path, and without this
    # environment's own .pth files, which lead to the source tree: those count only in a site directory.
    (Path(paths["purelib"]) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    scripts = Path(paths["scripts"])
    pip = (sys.executable, "-m", "pip", "--python", str(scripts / "python"))
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", str(wheel), cwd=directory)
    return scripts


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command, run without the paths that this process has been given."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_wheel_has_the_package_its_plugin_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = (path for path in (ROOT / "aiolocks").rglob("*") if path.is_file())
    assert shipped == {
        "_aiolocks_pytest.py",
        *(path.relative_to(ROOT).as_posix() for path in sources if path.parent.name != "__pycache__"),
    }
    assert "aiolocks/py.typed" in shipped
    assert any(name.startswith("aiolocks/lua/") and name.endswith(".lua") for name in shipped)


def test_the_sdist_has_what_the_wheel_was_made_of_and_tested_with(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        shipped = {name.partition("/")[2] for name in archive.getnames()}
    for path in (
        "_aiolocks_pytest.py",
        "aiolocks/__init__.py",
        "examples/payments/README.md",
        "tests/unit/test_packaging.py",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        # Files that tests of the sdist read besides.
        ".ci/run",
        ".github/workflows/tests.yml",
        "docs/assets/monitoring/prometheus-rules.yml",
        "mkdocs.yml",
    ):
        assert path in shipped
    for folder in (".ci", ".github", "aiolocks", "benchmarks", "docs", "examples", "tests"):
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
        there = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
        assert there <= shipped


@installed
def test_one_lock_from_the_wheel(elsewhere: Path, wheel: Path, tmp_path: Path) -> None:
    version, file = run(elsewhere / "python", "-W", "error", "-c", ONE_LOCK, cwd=tmp_path).split()
    assert Path(file).is_relative_to(elsewhere.parent)
    assert wheel.name.startswith(f"aiolocks-{version}-")


@installed
@pytest.mark.parametrize("command", [["aiolocks"], ["python", "-m", "aiolocks"]], ids=" ".join)
def test_its_commands(elsewhere: Path, tmp_path: Path, command: list[str]) -> None:
    help_text = run(elsewhere / command[0], *command[1:], "--help", cwd=tmp_path)
    assert "demo" in help_text
    assert "run" in help_text


@installed
def test_its_pytest_plugin_imports_nothing_before_a_test_asks_for_a_fixture(
    elsewhere: Path, tmp_path: Path
) -> None:
    """Each run of pytest pays for it where aiolocks is installed, also those of other projects.

    And nothing is set up.
    """
    (tmp_path / "test_of_something_else.py").write_text("""
import json, pathlib, sys

def test(request):
    pathlib.Path(__file__).with_name("modules.json").write_text(json.dumps(sorted(sys.modules)))
    if request.config.pluginmanager.has_plugin("aiolocks"):
        assert request.getfixturevalue("aiolocks_server").url
""")

    def modules(*options: str) -> set[str]:
        pytest_there = (elsewhere / "python", "-m", "pytest", "--setup-show", "-W", "ignore", *options, ".")
        before, _, _ = run(*pytest_there, cwd=tmp_path).partition("::test")
        assert not re.search("SETUP .*aiolocks", before)
        return set(json.loads((tmp_path / "modules.json").read_text()))

    assert modules() - modules("-p", "no:aiolocks") == {"_aiolocks_pytest"}


@pytest.mark.parametrize("scripts", ["packed", "forgotten"])
def test_from_an_archive(wheel: Path, tmp_path: Path, scripts: str) -> None:
    """As of `zipapp`. PyInstaller leaves out what is no Python, unless it is told: then nothing hangs."""
    archive = tmp_path / "aiolocks.zip"
    with zipfile.ZipFile(wheel) as packed, zipfile.ZipFile(archive, "w") as copy:
        for name in packed.namelist():
            if scripts == "packed" or not name.endswith(".lua"):
                copy.writestr(name, packed.read(name))
    ran = subprocess.run(
        [sys.executable, "-c", ONE_LOCK],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    if scripts == "packed":
        assert (ran.returncode, ran.stderr) == (0, "")
        assert str(archive) in ran.stdout
    else:
        assert "ConfigurationError: this program was packed without the folder aiolocks/lua" in ran.stderr


def test_links_of_the_description_lead_somewhere_from_an_index(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata, _, description = archive.read(name).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in metadata
    assert "Project-URL" not in metadata, "with an address, links begin with it: see hatch_build.py"
    links = re.findall(r"\]\(([^)]*)\)", description)
    assert all(link.startswith(("https://", "#")) for link in links), links
    assert "![" not in description
    readme = (ROOT / "README.md").read_text()
    code = re.findall(r"^```.*?^```$", readme, re.MULTILINE | re.DOTALL)
    assert code
    assert all(block in description for block in code)
    assert "How safe a lock is has" in " ".join(description.split())
