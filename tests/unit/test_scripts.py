"""The Lua files: constants with a head, read from their files, never put together in Python."""

from __future__ import annotations

import ast
import hashlib
import re
from pathlib import Path

import pytest

import aiolocks
from aiolocks._transport.calls import Script

PACKAGE = Path(aiolocks.__file__).parent
LUA = PACKAGE / "lua"
STEPS = sorted(LUA.glob("*.lua"))
SHARED = sorted((LUA / "shared").glob("*.lua"))
FILES = STEPS + SHARED
MODULES = sorted(PACKAGE.rglob("*.py"))
WITH_SCRIPTS = [path for path in MODULES if re.search(r"\bScript\b", path.read_text("utf-8"))]

# What servers know the scripts by. Whoever changes one changes its line here, and looks at tests/lua again.
FROZEN = {
    "lock_acquire": "649c4c0388984a3ba11b917a07ac6b9e1cdb1fe0",
    "lock_adopt": "4233ae26841f50637c656c1bc88747c127291db9",
    "lock_locked": "0cb906a1d4f715d231707586a41df55854c3c480",
    "lock_owned": "f997f377c949e56a0fb440034befb421e112e170",
    "lock_release": "47ce73538356b3f0569e93e7cf5a7701c73cf09a",
    "lock_renew": "8574254ad36e8d89db07147279fa169815230d04",
    "queue_arm": "fb3a3b1a061d0dd1c43cbdc6216420174502becb",
}

stem = pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
module = pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())


def test_the_scripts_are_the_frozen_ones() -> None:
    digests = {
        path.stem: hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest() for path in SCRIPTS
    }

    assert digests == FROZEN


@stem
def test_a_script_is_its_file_byte_for_byte(path) -> None:
    script = Script(path.stem)

    assert script.text == path.read_bytes()
    assert script.sha.decode() == FROZEN[path.stem]
    assert repr(script) == f"<Script {path.stem}>"


@stem
def test_the_head_says_what_goes_in_and_what_comes_out(path) -> None:
    text = path.read_text("utf-8")
    head = re.match(r"(?:--.*\n)+", text)
    assert head is not None
    lines = [line.removeprefix("--").strip() for line in head[0].splitlines()]

    assert lines[0].endswith(".")
    assert any(line.startswith("Returns ") for line in lines)
    for what in ("KEYS", "ARGV"):
        told = {int(number) for number in re.findall(r"(?<!\S)(\d)  ?(?=\w)", line_of(what, lines))}
        used = {int(number) for number in re.findall(rf"{what}\[(\d+)\]", text)}
        assert used == told, what


def line_of(what: str, lines: list[str]) -> str:
    """The line that tells the keys or the arguments; empty if there are none."""
    return next((line for line in lines if line.startswith(f"{what} ")), "")


@stem
def test_is_short_ascii_with_unix_line_ends(path) -> None:
    text = path.read_bytes()

    assert text.isascii()
    assert b"\r" not in text
    assert text.endswith(b"\n")
    assert text.count(b"\n") <= 60


@stem
def test_has_no_global_variables(path) -> None:
    """A server refuses them only when the line is executed."""
    text = re.sub(r"--.*", "", path.read_text("utf-8"))
    local = set(re.findall(r"\w+", " ".join(re.findall(r"\blocal ([\w, ]+)", text))))
    assigned = set(re.findall(r"(?:^|\b(?:then|else|do)\s)\s*(\w+)\s*=[^=]", text, re.MULTILINE))

    assert assigned <= local


@module
def test_no_python_file_holds_lua(path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            assert not re.search(r"redis\.p?call|KEYS\[|ARGV\[", text), f"line {node.lineno}"


def test_modules_with_scripts_are_found() -> None:
    assert PACKAGE / "_transport" / "commands.py" in WITH_SCRIPTS


@pytest.mark.parametrize("path", WITH_SCRIPTS, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_python_file_puts_a_script_together(path) -> None:
    """The text of a script is passed on as it is: no operator, f-string, subscript or method touches it."""
    tree = ast.parse(path.read_text("utf-8"))
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Attribute) and node.attr == "text" and isinstance(node.ctx, ast.Load)
        if is_text and ast.unparse(node) in ("script.text", "self.text"):
            parent = parents[node]
            passed_on = isinstance(parent, ast.Tuple) or ast.unparse(parent).startswith("hashlib.sha1(")
            assert passed_on, f"line {node.lineno}: {ast.unparse(parent)}"


@module
def test_scripts_are_named_by_constants(path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Script":
            assert all(isinstance(argument, ast.Constant) for argument in node.args), f"line {node.lineno}"
