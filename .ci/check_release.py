#!/usr/bin/env python3
"""Says whether the tree may be released under a tag, and prints the notes of that release.

`python3 .ci/check_release.py v0.2.0 https://github.com/OWNER/aiolocks` needs Python 3.11 and nothing else.
It ends with status 1, and a line for each thing to fix, if the tag, the version, the changelog, the status
in the README and the address of the repository do not agree.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

NOT_YET = "aiolocks is not published yet"


def changes(changelog: str, version: str) -> str | None:
    """The text under the heading of a version, or None without such a heading."""
    heading = rf"^## \[{re.escape(version)}\](?: - \d{{4}}-\d\d-\d\d)?\n"
    found = re.search(heading + r"(.*?)(?=^## |^\[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else None


def problems(root: Path, tag: str, repository: str) -> list[str]:
    """The obstacles to a release of the tree under `root`, each with the way to fix it."""
    version = re.search(r'^__version__ = "(.+)"$', (root / "aiolocks/__init__.py").read_text(), re.MULTILINE)
    changelog = (root / "CHANGELOG.md").read_text()
    urls = tomllib.loads((root / "pyproject.toml").read_text())["project"].get("urls", {})

    found: list[str] = []
    if version is None or tag != f"v{version[1]}":
        found.append(
            f"the tag is {tag}, but aiolocks.__version__ is {version and version[1]}: they must agree"
        )
    if not changes(changelog, tag.removeprefix("v")):
        found.append(
            f"CHANGELOG.md has nothing under [{tag.removeprefix('v')}]: rename [Unreleased], with the date"
        )
    if changes(changelog, "Unreleased"):
        found.append(
            "CHANGELOG.md has changes under [Unreleased]: move them to the version, or release them later"
        )
    readme = (root / "README.md").read_text()
    status = re.search(r"^\*\*Status:\*\* version ([\d.]+)", readme, re.MULTILINE)
    if version is not None and (status is None or not f"{version[1]}.".startswith(f"{status[1]}.")):
        found.append(
            f"the status line of README.md says version {status and status[1]}, but aiolocks.__version__ is "
            f"{version[1]}: write its first two numbers there"
        )
    if NOT_YET in " ".join(readme.split()):
        found.append(f"README.md says {NOT_YET!r}: say how it is installed from PyPI")
    found += [
        f"{page.name} says 'from a clone': say how it is installed from PyPI"
        for page in sorted(root.glob("docs/**/*.md"))
        if "from a clone" in page.read_text("utf-8")
    ]
    if repository not in urls.values():
        found.append(f"no entry of [project.urls] in pyproject.toml is {repository}: add it as Source")
    return found


def main(tag: str, repository: str) -> int:
    """Print the notes and return 0, or print the problems and return 1."""
    root = Path(__file__).resolve().parents[1]
    if found := problems(root, tag, repository):
        sys.stderr.write("".join(f"{problem}\n" for problem in found))
        return 1
    sys.stdout.write(f"{changes((root / 'CHANGELOG.md').read_text(), tag.removeprefix('v'))}\n")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: check_release.py TAG REPOSITORY")
    sys.exit(main(*sys.argv[1:]))
