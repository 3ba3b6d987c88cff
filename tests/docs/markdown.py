"""As much of Markdown as the documentation is made of: fenced blocks, headings, links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^(?P<marks>`{3,})(?P<language>\w*)(?: +title=\"(?P<title>[^\"]*)\")?$")
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+)$")
_LINK = re.compile(r"(?<!\!)\[(?:[^\[\]]|\[[^\[\]]*\])+\]\((?P<target>[^()\s]+)\)")
_CODE = re.compile(r"`([^`]+)`")
_FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z0-9]+(?:[ -][A-Za-z0-9]+)*")


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is that of its first line of text."""

    page: Path
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{_shown(self.page)}:{self.line}"

    @property
    def is_for_pytest(self) -> bool:
        return self.title.startswith("test_") or self.title == "conftest.py"


@dataclass(frozen=True)
class Page:
    """One file of Markdown, taken apart."""

    path: Path
    blocks: tuple[Block, ...]
    headings: tuple[str, ...]
    prose: str

    def __str__(self) -> str:
        return _shown(self.path)

    @property
    def links(self) -> list[str]:
        return [match["target"] for match in _LINK.finditer(_CODE.sub("code", self.prose))]

    @property
    def inline_code(self) -> list[str]:
        return _CODE.findall(self.prose)

    @property
    def words(self) -> int:
        """The number of words of the running text: without tables and fenced blocks."""
        lines = (line for line in self.prose.splitlines() if not line.lstrip().startswith("|"))
        return len(" ".join(lines).split())

    @property
    def anchors(self) -> set[str]:
        """Those of headings of plain words; no link should lead to another one."""
        return {slug(heading) for heading in self.headings if _PLAIN.fullmatch(_bare(heading))}


def _shown(path: Path) -> str:
    """Pages of one name stand in several directories."""
    return "/".join(path.parts[-2:])


def read(path: Path) -> Page:
    """Take a page apart, without its front matter. A fence stands at the beginning of its line.

    Raises:
        ValueError: A fence is not closed, or is followed by what this does not know.
    """
    blocks: list[Block] = []
    headings: list[str] = []
    prose: list[str] = []
    opened: tuple[int, re.Match[str]] | None = None
    text: list[str] = []
    whole = _FRONT.sub(lambda match: "\n" * match[0].count("\n"), path.read_text(encoding="utf-8"))
    for number, line in enumerate(whole.splitlines(), 1):
        if opened is not None:
            if line == opened[1]["marks"]:
                begin, fence = opened
                block = Block(
                    path, begin + 1, fence["language"], fence["title"] or "", "\n".join(text) + "\n"
                )
                blocks.append(block)
                opened, text = None, []
            else:
                text.append(line)
        elif line.lstrip().startswith("```"):
            fence = _FENCE.match(line)
            if fence is None:
                raise ValueError(f"{_shown(path)}:{number}: not a fence that the tests can read: {line}")
            opened = (number, fence)
        else:
            if heading := _HEADING.match(line):
                headings.append(heading["text"])
            prose.append(line)
    if opened is not None:
        raise ValueError(f"{_shown(path)}:{opened[0]}: this fence is not closed")
    return Page(path, tuple(blocks), tuple(headings), "\n".join(prose))


def _bare(heading: str) -> str:
    return re.sub("[`,]", "", heading)


def slug(heading: str) -> str:
    """The anchor of a heading, as long as it is made of plain words: there all renderers agree.

    Raises:
        ValueError: It is not.
    """
    text = _bare(heading)
    if not _PLAIN.fullmatch(text):
        raise ValueError(f"renderers may not agree on the anchor of {heading!r}")
    return text.lower().replace(" ", "-")
