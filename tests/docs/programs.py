"""Makes programs of blocks: on the site, the copy button of a block that is a part copies a whole program.

A part has ``await`` outside of a function, or uses names of earlier blocks of its page. Its program has the
imports, the earlier blocks that it needs, and a ``main``. MkDocs loads this module as a hook.
"""

from __future__ import annotations

import ast
import builtins
import html
import inspect
import io
import re
import symtable
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

if (root := str(Path(__file__).parents[2])) not in sys.path:
    sys.path.append(root)  # where `mkdocs` has not looked

from tests.docs.markdown import Block, Page, read

Import = tuple[str, str, str | None]
"""The module, or empty for `import …`; the name; the name that it gets here."""


def is_part(text: str) -> bool:
    """Whether a block does not run as a program by itself."""
    return _awaits(text) or bool(free_names(text))


def _awaits(source: str | ast.Module) -> bool:
    code = compile(source, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return bool(code.co_flags & inspect.CO_COROUTINE)


def free_names(text: str) -> set[str]:
    """The names that a block reads, and neither defines nor finds among the built-in ones."""
    table = symtable.symtable(text, "block", "exec")
    tables = [table]
    for one in tables:
        tables += one.get_children()
    read_here = {
        symbol.get_name()
        for one in tables
        for symbol in one.get_symbols()
        if symbol.is_global() or (one is table and symbol.is_referenced() and not symbol.is_assigned())
    }
    return read_here - names(table) - {*dir(builtins), "__name__", "__file__"}


def names(table: symtable.SymbolTable) -> set[str]:
    """The names that a module or a function gives values to."""
    return {
        symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()
    }


def programs(page: Page) -> Iterator[tuple[Block, str]]:
    """Each part of a page, with its program."""
    blocks = [block for block in page.blocks if block.language == "python" and not block.is_for_pytest]
    for number, block in enumerate(blocks):
        if is_part(block.text):
            yield block, program([one.text for one in blocks[: number + 1]])


def program(texts: Sequence[str]) -> str:
    """A program that does what the last text does, with those before it that it needs."""
    missing, imports, chosen = free_names(texts[-1]), set(_imports(texts[-1])), [texts[-1]]
    for text in reversed(texts[:-1]):
        brought = {one[2] or one[1].partition(".")[0]: one for one in _imports(text)}
        imports |= {brought[name] for name in missing & brought.keys()}
        missing -= brought.keys()
        given = names(symtable.symtable(text, "block", "exec"))
        if missing & given:
            chosen.insert(0, text)
            imports |= set(_imports(text))
            missing = missing - given | free_names(text)
    statements = [statement for text in chosen for statement in _statements(text)]
    first = next((number for number, (kind, _) in enumerate(statements) if kind == "awaits"), len(statements))
    while 0 < first < len(statements) and statements[first - 1][0] == "acts":
        first -= 1  # it may need the loop, and the function reads better in one piece
    begin, rest = ("".join(text for _, text in some) for some in (statements[:first], statements[first:]))
    if rest:
        imports.add(("", "asyncio", None))
        rest = _in_function(begin, re.sub(r"\n{3,}", "\n\n", rest.strip("\n")))
    begin = begin.strip("\n")
    space = "\n\n\n" if re.match(r"@|class |(async )?def ", begin) else "\n\n"
    head = f"{_import_lines(imports)}{space}{begin}".strip("\n")
    return "\n\n\n".join(part for part in (head, rest) if part) + "\n"


def _imports(text: str) -> Iterator[Import]:
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            yield from ((module, alias.name, alias.asname) for alias in node.names)


def _statements(text: str) -> Iterator[tuple[str, str]]:
    """Each statement but the imports, with the comment before it: it awaits, it acts, or it only defines."""
    lines = text.splitlines(keepends=True)
    nodes = ast.parse(text).body
    begin = 0
    for node in nodes:
        end = len(lines) if node is nodes[-1] else node.end_lineno or 0
        if not isinstance(node, ast.Import | ast.ImportFrom):
            defines = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign)
            kind = "awaits" if _awaits(ast.Module([node], [])) else "defines" if defines else "acts"
            yield kind, "".join(lines[begin:end]) + "\n" * (node is nodes[-1])
        begin = end


def _in_function(begin: str, rest: str) -> str:
    """The statements in a coroutine function that is run; names that functions before it know are global."""
    name = "program" if re.search(r"\bmain\b", begin + rest) else "main"
    whole = symtable.symtable(f"{begin}\nasync def {name}():\n{_indented(rest)}", "block", "exec")
    tables = whole.get_children()
    inside = next(table for table in tables if table.get_name() == name)
    outside = names(whole)
    for table in (one for one in tables if one is not inside):
        tables += table.get_children()
        outside |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    tables = [inside]
    for table in tables:
        tables += table.get_children()
        outside |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_declared_global()}
    shared = sorted(names(inside) & outside)
    if shared:
        rest = f"global {', '.join(shared)}\n{rest}"
    return f"async def {name}() -> None:\n{_indented(rest)}\n\n\nasyncio.run({name}())"


def _indented(text: str) -> str:
    """The text, four spaces to the right, except within strings of several lines."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    kept = {line for token in tokens for line in range(token.start[0] + 1, token.end[0] + 1)}
    lines = enumerate(text.splitlines(), 1)
    return "\n".join(line if number in kept or not line else f"    {line}" for number, line in lines)


def _import_lines(imports: set[Import]) -> str:
    modules: dict[str, set[str]] = {}
    for module, name, known in imports:
        statement = f"from {module} import " if module else f"import {name}"
        modules.setdefault(statement, set()).add((name if module else "") + (f" as {known}" if known else ""))
    lines = sorted((line + ", ".join(sorted(found)) for line, found in modules.items()), key=_place)
    text = ""
    for before, line in zip(["", *lines], lines, strict=False):
        text += "\n" * (bool(before) and _place(before)[0] != _place(line)[0]) + f"{line}\n"
    return text.rstrip("\n")


def _place(line: str) -> tuple[int, bool, str]:
    """Where an import stands: the standard library first, aiolocks last."""
    package = re.split(r"[ .]", line)[1]
    return 0 if package in sys.stdlib_module_names else 1 + (package == "aiolocks"), line[0] == "f", line


_HIGHLIGHT = re.compile(
    r'<div class="highlight">(?=(?:<span class="filename">[^<]*</span>)?<pre>(.*?)</pre>)', re.DOTALL
)


def on_page_content(content: str, *, page: Any, **_: Any) -> str:
    """The hook: each part of a page gets its program as the text that is copied."""
    path = Path(page.file.abs_src_path)
    copied = {block.text.strip(): whole for block, whole in programs(read(path))}

    def filled(match: re.Match[str]) -> str:
        text = html.unescape(re.sub(r"<[^>]+>", "", match[1])).strip()
        if text not in copied:
            return match[0]
        return f'<div class="highlight" data-copy="{html.escape(copied[text])}">'

    return _HIGHLIGHT.sub(filled, content)


def on_post_page(output: str, **_: Any) -> str:
    """The hook for keys and screen readers: code can be scrolled by keys, and the search has a name."""
    output = output.replace('"search" role="dialog"', '"search" role="dialog" aria-label="Search"')
    return re.sub(r"(<pre[^>]*><span></span>)<code>", r'\1<code tabindex="0">', output)
