#!/usr/bin/env python3
"""Finds sentences that are not Plain English: in docstrings, comments and pages of the project.

`python3 .ci/plain_english.py` reads the tree that it is in, needs nothing but Python 3.11, and prints a line
for each finding. It ends with status 1 if there is one. The tool knows the rules that a pattern can decide:

- No sentence begins with *who*, *whoever*, *whose*, *whom*, *whatever* or *what*, unless it is a question.
- Software is *it*: no *he*, *him*, *his*.
- Plain words: *again* and not *anew*, a number and not *so many*, *must* and not *is to be*.

Code in backticks, fenced blocks, text in double quotes and single words in italics do not count.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = (".ci", ".github", "aiolocks", "benchmarks", "docs", "examples", "tests")
PAGES = ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "README.md", "SECURITY.md")

Text = tuple[int, str]
"""The number of the first line of a paragraph, and the paragraph."""

_RELATIVE = re.compile(r"[*_(\[\s\"“'`x]*?(?:whoever|whatever|whose|whom|who|what)\b(?!')", re.IGNORECASE)
_WORDS = (
    (re.compile(r"\b(?:he|him|his|himself)\b", re.IGNORECASE), "software is *it*"),
    (re.compile(r"\banew\b", re.IGNORECASE), "write *again*"),
    (re.compile(r"\bso (?:many|often)\b(?![^.;:]*\bthat\b)", re.IGNORECASE), "name the number"),
    (re.compile(r"\b(?:is|are|was|were) to be\b", re.IGNORECASE), "write *must*"),
)
_WORD = re.compile(r"\b(?:he|him|his|himself|anew|so|to be)\b", re.IGNORECASE)
_HIDDEN = re.compile(r"(`+)(?:(?!\1).)+\1|\"[^\"]*\"|“[^”]*”|\]\([^()\s]*\)|(?<![\w*])\*[a-z ]+\*(?!\*)")
_END = re.compile(r"[.!?][\"”')*_]*\s+(?=[*_\"“'(\[]*[A-Z0-9`])")
_ITEM = re.compile(r"\s*(?:[-*+]|\d+\.)\s+|#+\s+|>\s?")
_ARGUMENT = re.compile(r"^ +\*{0,2}[\w.]+: ", re.MULTILINE)
_PYTHON_COMMENT = re.compile(r"(?:^|(?<=\s))#:? (?!type:|noqa|pragma:|fmt:|pyright:)")
_LUA_COMMENT = re.compile(r"--")


def of_markdown(source: str) -> Iterator[Text]:
    """The paragraphs, items, cells and headings of a page or a docstring, without fenced blocks."""
    begin, lines, fence = 1, list[str](), ""
    for number, line in enumerate([*source.splitlines(), ""], 1):
        bare = line.strip()
        if fence or bare.startswith("```"):
            marks = bare[: len(bare) - len(bare.lstrip("`"))]
            fence = "" if fence and marks == fence == bare else fence or marks
            bare = ""
        item = _ITEM.match(line)
        if lines and (not bare or item or bare.startswith("|")):
            yield begin, " ".join(lines)
            lines = []
        if bare.startswith("|"):
            yield from ((number, cell.strip()) for cell in re.split(r"(?<!\\)\|", bare) if cell.strip(" :-"))
        elif bare:
            begin = begin if lines else number
            lines.append(line[item.end() :].strip() if item else bare)


def of_docstring(source: str) -> Iterator[Text]:
    """As `of_markdown`; the text about each argument is a paragraph of its own."""
    yield from of_markdown(_ARGUMENT.sub(lambda found: "- " + " " * (len(found[0]) - 2), source))


def of_comments(source: str, mark: re.Pattern[str]) -> Iterator[Text]:
    """The comments of a program. Those on lines of their own, in one column, are read as one page."""
    begin, page, column = 1, list[str](), -1
    for number, line in enumerate([*source.splitlines(), ""], 1):
        found = mark.search(line)
        alone = found.start() if found and not line[: found.start()].strip() else -1
        if page and (alone < 0 or alone != column):
            yield from ((begin + at - 1, text) for at, text in of_markdown("\n".join(page)))
            page = []
        if found and alone < 0:
            yield number, line[found.end() :].strip()
        elif found:
            begin = begin if page else number
            page.append(line[found.end() :])
        column = alone


def of_python(source: str) -> Iterator[Text]:
    """The docstrings of a module, also those of attributes, and its comments."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                yield from ((node.lineno + line - 1, text) for line, text in of_docstring(docstring))
    yield from of_comments(source, _PYTHON_COMMENT)


def of_lua(source: str) -> Iterator[Text]:
    """The comments of a script."""
    yield from of_comments(source, _LUA_COMMENT)


READERS = {".md": of_markdown, ".py": of_python, ".lua": of_lua}


def sentences(text: str) -> Iterator[tuple[str, str]]:
    """The sentences of a paragraph: as they stand, and with dots for what does not count."""
    plain = _HIDDEN.sub(lambda found: "`" + "." * (len(found[0]) - 2) + "`", text)
    begin = 0
    for end in [*(found.end() for found in _END.finditer(plain)), len(plain)]:
        yield text[begin:end].strip(), plain[begin:end].strip()
        begin = end


def findings(text: str) -> Iterator[tuple[str, str]]:
    """Each sentence of a paragraph that is not plain, with the advice."""
    for sentence, plain in sentences(text):
        if _RELATIVE.match(plain) and not plain.rstrip('*_)"” `').endswith("?"):
            yield sentence, "name the subject first"
        if _WORD.search(plain):
            yield from ((sentence, advice) for pattern, advice in _WORDS if pattern.search(plain))


def paths(root: Path) -> Iterator[Path]:
    """The files that are read."""
    yield from (root / name for name in PAGES if (root / name).exists())
    for folder in FOLDERS:
        yield from (path for path in sorted((root / folder).rglob("*")) if path.suffix in READERS)


def main(root: Path) -> int:
    """Print the findings in a tree; 1 if there are any."""
    found = 0
    for path in paths(root):
        for line, text in READERS[path.suffix](path.read_text("utf-8")):
            for sentence, advice in findings(text):
                sys.stdout.write(f"{path.relative_to(root)}:{line}: {advice}: {sentence}\n")
                found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[1]))
