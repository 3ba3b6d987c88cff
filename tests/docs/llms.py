"""The list of all pages for programs that read: `python -m tests.docs.llms` writes docs/llms.txt again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.docs.markdown import read

ROOT = Path(__file__).parents[2]
LIST = ROOT / "docs/llms.txt"


def navigation() -> list[Any]:
    """The sidebar of the site."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2].partition("\nvalidation:")[0]
    found: list[Any] = yaml.safe_load(text)
    return found


def pages(entries: list[Any]) -> Iterator[tuple[str, str]]:
    """Title and path of each page."""
    for entry in entries:
        for title, target in entry.items():
            if isinstance(target, str):
                yield title, target
            else:
                yield from pages(target)


def address(path: str) -> str:
    """The address of a page, from the root of the site."""
    return f"{path.removesuffix('.md')}/".removesuffix("index/") or "./"


def first_sentence(path: Path) -> str:
    """The first sentence of a page; empty if the page begins with something else."""
    paragraphs = [
        part for part in read(path).prose.split("\n\n") if part.strip() and not part.startswith("#")
    ]
    text = " ".join(paragraphs[0].split()) if paragraphs else ""
    return text.split(". ")[0].rstrip(".:") if text[:1].isalnum() else ""


def text() -> str:
    """The list, in the form that llmstxt.org describes."""
    lines = ["# aiolocks", "", f"> {first_sentence(ROOT / 'docs/index.md')}.", ""]
    for entry in navigation():
        for title, target in entry.items():
            lines += ["", f"## {title}", ""]
            for name, path in pages([{title: target}]):
                said = first_sentence(ROOT / "docs" / path)
                lines.append(f"- [{name}]({address(path)})" + (f": {said}." if said else ""))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    LIST.write_text(text(), encoding="utf-8")
