"""The workflows run what README and .ci/run say, and a release is refused if its parts do not agree."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.markdown import read
from tests.docs.test_site import BUILD

ROOT = Path(__file__).parents[2]
HIDDEN = ROOT / ".github"
SHELL = [block.text.strip() for block in read(ROOT / "README.md").blocks if block.language in ("sh", "bash")]
LINE = SHELL[1]
WORKFLOWS: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text()) for path in (HIDDEN / "workflows").iterdir()
}
PAGES = [ROOT / f"{name}.md" for name in ("CODE_OF_CONDUCT", "CONTRIBUTING", "SECURITY")]


def steps(name: str, job: str) -> list[dict[str, Any]]:
    return WORKFLOWS[name]["jobs"][job]["steps"]


def last_run(name: str, job: str) -> str:
    return [step["run"] for step in steps(name, job) if "run" in step][-1]


def test_they_run_the_line_of_the_readme_and_ci_run() -> None:
    assert last_run("tests", "everything") == ".ci/run"
    assert last_run("tests", "pythons") == last_run("release", "sdist") == LINE
    arguments = last_run("tests", "servers").removeprefix(f"{LINE} ").split()
    # All workers would share the server, and each would remove the keys of the others.
    assert arguments[:2] == ["-n", "0"]
    assert all((ROOT / path).is_dir() for path in arguments[2:])


def test_they_build_the_site_as_ci_run_does() -> None:
    builds = [step for step in steps("docs", "build") if "mkdocs build" in step.get("run", "")]
    assert builds[0]["run"] == f".venv/bin/{' '.join(BUILD)} site"
    (line,) = [line for line in (ROOT / ".ci/run").read_text().splitlines() if "test_site.py" in line]
    (variable,) = builds[0]["env"].items()
    assert line.startswith(f"{'='.join(variable)} beside 1 .venv/bin/python -m pytest ")


def test_the_matrix_has_what_is_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    jobs = WORKFLOWS["tests"]["jobs"]
    matrix = jobs["pythons"]["strategy"]["matrix"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    may_fail = re.findall(r"'(3\.\d+)'", jobs["pythons"]["continue-on-error"])
    assert [python for python in matrix["python"] if python not in may_fail] == promised
    assert f">={promised[0]}" == project["requires-python"]
    assert {os.partition("-")[0] for os in matrix["os"]} == {"ubuntu", "macos"}
    images = jobs["servers"]["strategy"]["matrix"]["image"]
    assert images == ["redis:6.2", "redis:7", "redis:8", "valkey/valkey:8", "valkey/valkey:9"]
    assert jobs["servers"]["env"]["AIOLOCKS_TEST_REDIS_URL"].startswith("redis://localhost:6379")


@pytest.mark.parametrize("name", WORKFLOWS)
def test_they_may_do_no_more_than_they_must(name: str) -> None:
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {"contents": "read"}
    allowed = {"publish": {"id-token"}, "announce": {"contents"}, "deploy": {"id-token", "pages"}}
    for key, job in workflow["jobs"].items():
        assert {*job.get("permissions", {})} == allowed.get(key, set())
        assert "uses" in job or job["timeout-minutes"] <= 60
        for step in job.get("steps", []):
            assert "${{" not in step.get("run", "")  # text of others would become a program
            if "uses" in step:
                assert re.search(r"@(v\d+|release/v1)$", step["uses"])
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_nothing_is_published_that_was_not_tested() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    assert {*jobs["publish"]["needs"]} == {"tests", "build", "sdist"}
    assert jobs["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert jobs["publish"]["environment"]["name"] == "pypi"
    assert jobs["announce"]["needs"] == "publish"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_the_pages_lead_somewhere(page: Path) -> None:
    for link in read(page).links:
        assert (page.parent / link).exists(), link
    for code in read(page).inline_code:
        if re.fullmatch(r"(\.ci|tests)/[\w/.]+", code):
            assert (ROOT / code).exists(), code


# -- the check of a release

REPOSITORY = "https://example.org/aiolocks"


@pytest.fixture(scope="module")
def check() -> Any:
    spec = importlib.util.spec_from_file_location("check_release", ROOT / ".ci/check_release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree that may be released as v1.2.3."""
    (tmp_path / "aiolocks").mkdir()
    (tmp_path / "aiolocks/__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "## [Unreleased]\n\n## [1.2.3] - 2026-12-01\n\n### Added\n\n- This.\n\n## [1.2.2]\n\n- That.\n"
    )
    (tmp_path / "README.md").write_text("# aiolocks\n\n**Status:** version 1.2, stable.\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.md").write_text("pip install aiolocks\n")
    (tmp_path / "pyproject.toml").write_text(f'[project]\nurls = {{ Source = "{REPOSITORY}" }}\n')
    return tmp_path


def test_a_tree_that_agrees_may_be_released(check, tree: Path, monkeypatch, capsys) -> None:
    assert check.problems(tree, "v1.2.3", REPOSITORY) == []
    (tree / ".ci").mkdir()
    monkeypatch.setattr(check, "__file__", str(tree / ".ci/check_release.py"))
    assert check.main("v1.2.3", REPOSITORY) == 0
    assert capsys.readouterr().out == "### Added\n\n- This.\n"


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("aiolocks/__init__.py", "1.2.3", "1.2.4", "the tag is v1.2.3, but aiolocks.__version__ is 1.2.4"),
        ("aiolocks/__init__.py", "__version__", "version", "aiolocks.__version__ is None"),
        ("CHANGELOG.md", "[1.2.3]", "[1.2.4]", r"has nothing under \[1.2.3\]"),
        ("CHANGELOG.md", "### Added\n\n- This.\n", "", r"has nothing under \[1.2.3\]"),
        ("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\n\n- More.\n", r"has changes under \[Unreleased\]"),
        ("pyproject.toml", "example.org", "example.com", "no entry of .* is https://example.org/aiolocks"),
        ("pyproject.toml", "urls", "url", "no entry of"),
        ("README.md", "1.2", "1.1", "says version 1.1, but aiolocks.__version__ is 1.2.3"),
        ("README.md", "**Status:**", "Status:", "says version None"),
        ("README.md", "stable.", "stable.\n\naiolocks is not\npublished yet", "say how it is installed"),
        ("docs/page.md", "aiolocks", ".  # from a clone", "page.md says 'from a clone'"),
    ],
)
def test_one_that_does_not_is_refused(check, tree: Path, file: str, old: str, new: str, problem: str) -> None:
    path = tree / file
    path.write_text(path.read_text().replace(old, new))
    (found,) = check.problems(tree, "v1.2.3", REPOSITORY)
    assert re.search(problem, found)


def test_the_changelog_can_be_read(check) -> None:
    assert check.changes((ROOT / "CHANGELOG.md").read_text(), "Unreleased") is not None
