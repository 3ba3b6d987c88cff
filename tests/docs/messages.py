"""The messages that a user can meet, read from the source: of errors, and of lines in the log."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import aiolocks.errors

PACKAGE = Path(__file__).parents[2] / "aiolocks"
ERRORS = {name for name in aiolocks.errors.__all__ if name != "LockError"}
LOG = "In the log"

_IN_LOG = {"warning": 0, "error": 0, "exception": 0, "critical": 0, "log": 1, "tell": 2, "_say": 2}
"""Which argument is the text; of `together.tell` and of `_say` of the events, `many` is another one."""
_SAID_BY = {
    "lose": ("LockLostError",),
    "why_over": ("LockLostError",),
    "why_grace": ("LockLostError",),
    "_why_not_held": ("LockLostError", "LockNotOwnedError"),
    "End": ("LockLostError", "LockNotOwnedError"),
    "forced": ("LockLostError",),
    "stolen_by": ("LockLostError",),
    "failed": ("BackendError",),
    "_misconfiguration": ("ConfigurationError",),
    "without_ttl": ("LockTimeoutError", "DuplicateJobError"),
    "endless": ("DuplicateJobError",),
}
"""Functions that say the reason of an error: in what they are called with, or in what they return."""
_OTHERS = ("contrib/redis_py", "cli", "testing")
"""The errors of redis-py; commands, which have a page of their own; tests."""


SECTIONS = (*sorted(ERRORS), "RuntimeError", LOG)


@functools.cache
def templates() -> dict[str, set[str]]:
    """The messages of each error, of `RuntimeError`, and in the log; `…` stands for what varies."""
    found: dict[str, set[str]] = {name: set() for name in SECTIONS}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        if not place.startswith(_OTHERS):
            for name, text in _said(ast.parse(path.read_text("utf-8"))):
                found[name].add(re.sub(r"%[.\w]+", "…", text) if name == LOG else text)
    return found


def alike(one: str, other: str) -> bool:
    """Whether one of two messages has the words of the other, in this order, around its `…`."""
    return _in_order(one, other) or _in_order(other, one)


def _in_order(words: str, text: str) -> bool:
    pieces = [piece.strip(" :.;,") for piece in words.split("…")]
    return re.search(".*".join(map(re.escape, pieces)), text, re.DOTALL) is not None


def _said(tree: ast.Module) -> Iterator[tuple[str, str]]:
    constants = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    } | {
        node.target.id: node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in ERRORS:
            for part in ast.walk(node):
                made_of: list[ast.expr] = []
                if isinstance(part, ast.Assign):
                    made_of = [part.value]
                elif isinstance(part, ast.Call) and _called(part) == "__init__":
                    made_of = part.args
                yield from ((node.name, text) for one in made_of for text in _texts(one, {}))
        elif isinstance(node, ast.FunctionDef):
            for name in _SAID_BY.get(node.name, ()):
                for part in ast.walk(node):
                    if isinstance(part, ast.Return) and part.value is not None:
                        yield from ((name, text) for text in _texts(part.value, {}))
        elif isinstance(node, ast.Call):
            if _called(node) == "inside" and isinstance(node.args[0], ast.Attribute):  # see `events.within`
                node = ast.Call(node.args[0], node.args[1:], node.keywords)  # noqa: PLW2901 - what it calls
            elif isinstance(node.func, ast.Call) and _called(node.func) == "within":
                node = ast.Call(node.args[0], [*_plain(node.args[1:])], node.keywords)  # noqa: PLW2901 - as above
            function = _called(node)
            names = _SAID_BY.get(function, ())
            if function in _IN_LOG and (isinstance(node.func, ast.Attribute) or function == "_say"):
                names = (LOG,)
            elif function in ERRORS or function == "RuntimeError":
                names = (function,)
            elif node.args and isinstance(node.args[0], ast.Call) and _called(node.args[0]) in ERRORS:
                names = (_called(node.args[0]),)  # an error, and the text that it gets
            for name in names:
                of_it = node.args[_IN_LOG[function] :][:1] if name == LOG else node.args
                if name == LOG:
                    of_it = [*of_it, *(one.value for one in node.keywords if one.arg == "many")]
                yield from ((name, text) for one in of_it for text in _texts(one, constants))


def _plain(arguments: list[ast.expr]) -> Iterator[ast.expr]:
    """The arguments, also those that are given as `*(…)`."""
    for one in arguments:
        if isinstance(one, ast.Starred) and isinstance(one.value, ast.Tuple):
            yield from one.value.elts
        else:
            yield one


def _called(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def _texts(node: ast.AST, constants: dict[str, ast.expr]) -> Iterator[str]:
    """The texts that an expression can be, as far as they say something."""
    match node:
        case ast.Constant(value=str(text)) | ast.JoinedStr(values=[ast.Constant(value=str(text))]):
            if " " in text.strip():
                yield text
        case ast.JoinedStr(values=parts):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
            if " " in text.strip("…: "):
                yield text
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*_texts(body, constants), *_texts(orelse, constants))
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)):
            yield from _texts(constants.get(name, ast.Pass()), {})
        case ast.Dict(values=values):
            yield from (text for value in values for text in _texts(value, {}))
