"""Python blocks run when they are pasted by themselves, or their page says of what they are a part."""

from __future__ import annotations

import ast
import builtins
import inspect
import symtable

from tests.docs.markdown import Block, Page
from tests.docs.test_docs import PAGES, ROOT

HOW = ROOT / "docs/how-to/run-the-examples.md"


def parts(page: Page) -> list[Block]:
    """The blocks that are no program: they need names of earlier blocks, or await outside of a function."""
    found: list[Block] = []
    for block in page.blocks:
        if block.language == "python":
            code = compile(block.text, block.page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            if code.co_flags & inspect.CO_COROUTINE or free_names(block.text):
                found.append(block)
    return found


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
    defined = {
        symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()
    }
    return read_here - defined - {*dir(builtins), "__name__", "__file__"}


def test_pages_whose_blocks_are_parts_say_how_to_run_them() -> None:
    for page in PAGES:
        said = "run-the-examples.md)" in page.prose or page.path == HOW
        assert said or not parts(page), (
            f"{page}: say how a reader runs {parts(page)[0]}, by a link to run-the-examples.md"
        )


def test_blocks_that_are_parts_are_found() -> None:
    assert free_names("import a\nprint(a, [b for b in c], d)\ndef f(e): return e, g\n") == {"c", "d", "g"}
