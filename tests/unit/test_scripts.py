"""The Lua files: constants with a head, read from their files, never put together in Python."""

from __future__ import annotations

import ast
import hashlib
import importlib
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
LONGEST_STEP, LONGEST_SHARED = 60, 200

# What servers know the scripts by. Whoever changes one changes its line here, and looks at tests/lua again.
FROZEN = {
    "lock_acquire": "649c4c0388984a3ba11b917a07ac6b9e1cdb1fe0",
    "lock_adopt": "4233ae26841f50637c656c1bc88747c127291db9",
    "lock_locked": "0cb906a1d4f715d231707586a41df55854c3c480",
    "lock_owned": "f997f377c949e56a0fb440034befb421e112e170",
    "lock_release": "47ce73538356b3f0569e93e7cf5a7701c73cf09a",
    "lock_renew": "8574254ad36e8d89db07147279fa169815230d04",
    "multi_acquire": "b5cb274e13f161528f470ce40a1234a6a52b632c",
    "multi_adopt": "569123d090257bcc976c6c0f47be7d9811d09f3c",
    "multi_locked": "f6d815c31407fba4ecd7d57b1d451f39b0aceade",
    "multi_owned": "75740b42408f5620bb0842c1ad4ca32246671de0",
    "multi_release": "2d66133846a66fca5401d31786d982e595be11d8",
    "multi_renew": "d708715d3f3952dcf2966eb495f38a0489bac588",
    "permits_acquire": "e9e6dbc24614fc5c1e2308c1b7b8147c3a26ae7d",
    "permits_adopt": "4418e30a2ab29ce67f24745653f7a193daa724a7",
    "permits_available": "50a5bac0db8f271e96d597c84e1835c3115af161",
    "permits_owned": "9c51503a6cc280b1f7bc123fc4e070c31843e324",
    "permits_release": "7f87d8d5565ae1dbd2ff5aaccc3f97e88cc31af4",
    "permits_renew": "2c51887fcd0ab2e841ad6a545b7323bd227cc792",
    "permits_resize": "2bd8dc5a30d7f8eb34d489314111be12d100754e",
    "queue_arm": "50b313d018d0b457e122ba1448db004a7d203865",
    "reentrant_acquire": "bddceda65369b7e43c45df16a0d69c5988806e68",
    "reentrant_adopt": "8fd86e806f51577fc99984f2d07993ca6ff8aee2",
    "reentrant_locked": "d068484642a7025b076af39018b0afdaa61c86f9",
    "reentrant_owned": "a4b4aca65399af51714d738f4e456fdea528e7e8",
    "reentrant_release": "15a39530a3f489ab8640b543fd68034499822f43",
    "reentrant_renew": "46c77a0d9878b14b658c86e401444ecf684859f8",
    "spans_acquire": "e124238f293763915a84f90d315b1153694f12d1",
    "spans_adopt": "f7f8815277ece839e098bad9d2e7d31e33807adc",
    "spans_change": "96d9655a6744f7b4751ed2697495b21cf23035bf",
    "spans_locked": "8b749a049ab488e5e57d51c6bb798ab1f12230b8",
    "spans_owned": "02a52a109eb2af8991d5cad589ce020ea8de68e5",
    "spans_release": "2bf7a03f1becc70c8081428d57e8f9b21cdbe9d9",
    "spans_renew": "d759197ac59adaeb3c0c5f5277cb584113759044",
    "shared/fence": "6e7fc549e56c84d4a5161ded93021da886842538",
    "shared/locks": "61ca2c8468634d54c16a446c0d39299327244373",
    "shared/nest": "7a652324006aaf5bbdce08b76a885e594f3bb356",
    "shared/permits": "aadd7e65408ce92d05850c7bd37fc1c42cce3e84",
    "shared/queue": "eea8f177b74b728673841d9b4739054562bffe15",
    "shared/spans": "86a516536bf69800547d3ad0031aff7b55762ad3",
}


def name_of(path: Path) -> str:
    """`lock_acquire`, `shared/fence`."""
    return path.relative_to(LUA).with_suffix("").as_posix()


def scripts() -> dict[str, Script]:
    """All that are sent, by their names."""
    found: dict[str, Script] = {}
    for path in sorted((PACKAGE / "_transport" / "commands").glob("*.py")):
        module = importlib.import_module(f"aiolocks._transport.commands.{path.stem}")
        for value in vars(module).values():
            if isinstance(value, Script):
                assert found.setdefault(value.name, value).shared == value.shared
    return found


SCRIPTS = scripts()

file = pytest.mark.parametrize("path", FILES, ids=name_of)
script = pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
module = pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())


def test_the_scripts_are_the_frozen_ones() -> None:
    digests = {
        name_of(path): hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest() for path in FILES
    }

    assert digests == FROZEN


def test_each_file_is_needed_by_a_script() -> None:
    assert sorted(SCRIPTS) == [path.stem for path in STEPS]
    assert {name for script in SCRIPTS.values() for name in script.shared} == {path.stem for path in SHARED}


@script
def test_a_script_is_its_files_byte_for_byte(script) -> None:
    files = [LUA / "shared" / f"{name}.lua" for name in script.shared] + [LUA / f"{script.name}.lua"]
    text = b"".join(path.read_bytes() for path in files)

    assert script.text == text
    assert script.sha.decode() == hashlib.sha1(text, usedforsecurity=False).hexdigest()
    assert repr(script) == f"<Script {script.name}>"


def test_what_several_steps_share_stands_in_front_in_the_order_given() -> None:
    texts = [
        (LUA / file).read_bytes() for file in ("shared/fence.lua", "shared/locks.lua", "multi_acquire.lua")
    ]

    assert Script("multi_acquire", "fence", "locks").text == b"".join(texts)
    assert Script("multi_acquire", "locks", "fence").text == texts[1] + texts[0] + texts[2]
    assert Script("multi_acquire").text == texts[2]


@script
def test_the_head_says_what_goes_in_and_what_comes_out(script) -> None:
    step = (LUA / f"{script.name}.lua").read_text("utf-8")
    lines = head_of(step)

    assert any(line.startswith("Returns ") for line in lines)
    for what in ("KEYS", "ARGV"):
        told = numbers_told(what, lines)
        if what == "KEYS" and not told and script.shared:
            told = numbers_used(what, step)  # so many of each: n locks, n fences
        assert numbers_used(what, step) <= told, what
        assert told <= numbers_used(what, script.text.decode()), what


@file
def test_the_head_says_what_it_is_for(path) -> None:
    assert re.search(r"\.$", "\n".join(head_of(path.read_text("utf-8"))), re.MULTILINE)


def head_of(text: str) -> list[str]:
    """The lines of the comment at the top."""
    head = re.match(r"(?:--.*\n)+", text)
    assert head is not None
    return [line.removeprefix("-- ").removeprefix("--") for line in head[0].splitlines()]


def numbers_told(what: str, lines: list[str]) -> set[int]:
    """The numbers of keys or arguments that the head tells, also on lines that go on, which are indented."""
    told = ""
    for line in lines:
        if line.startswith(f"{what} "):
            told = line.removeprefix(what)
        elif told and line.startswith("      "):
            told += line
        elif told:
            break
    ranges = re.findall(r"(?<!\S)(\d+)…(\d+) ", told)
    spread = {number for first, last in ranges for number in range(int(first), int(last) + 1)}
    return spread | {int(number) for number in re.findall(r"(?<!\S)(\d+)…?  ?(?=\w)", told)}


def numbers_used(what: str, text: str) -> set[int]:
    """Those that the code reads: also all from the first of a loop to the end, as the first."""
    code = re.sub(r"--.*", "", text)
    used = {int(number) for number in re.findall(rf"{what}\[(\d+)\]", code)}
    return used | {
        int(number) for number in re.findall(rf"for \w+ = (\d+), #{what}\b", code) if number != "1"
    }


@file
def test_is_short_with_unix_line_ends(path) -> None:
    text = path.read_bytes().decode()

    assert re.sub(r"--.*", "", text).isascii()
    assert "\r" not in text
    assert text.endswith("\n")
    assert text.count("\n") <= (LONGEST_STEP if path in STEPS else LONGEST_SHARED)


BUILT_IN = {"ipairs", "pairs", "tonumber", "tostring", "unpack"}
KEYWORDS = {"and", "elseif", "if", "in", "not", "or", "return", "while", "function"}


@script
def test_has_no_global_variables(script) -> None:
    """A server refuses them only when the line is executed."""
    text = re.sub(r"--.*|'[^'\n]*'", "", script.text.decode())
    local = set(re.findall(r"\w+", " ".join(re.findall(r"\blocal ([\w, ]+)", text))))
    local |= set(re.findall(r"\w+", " ".join(re.findall(r"\bfunction \w+\(([\w, ]*)\)", text))))
    outside_tables = text
    while re.search(r"\{[^{}]*\}", outside_tables):
        outside_tables = re.sub(r"\{[^{}]*\}", "", outside_tables)
    assigned = re.findall(
        r"(?:^|\b(?:then|else|do)\s)\s*(\w+(?:, \w+)*)\s*=[^=]", outside_tables, re.MULTILINE
    )
    assert {name for names in assigned for name in names.split(", ")} <= local

    for called in re.finditer(r"(?<![\w.])(\w+)\(", text):
        before = text[: called.start()]
        if called[1] not in BUILT_IN | KEYWORDS and not before.endswith("function "):
            assert re.search(rf"\blocal (?:function )?{called[1]}\b", before), called[1]


@module
def test_no_python_file_holds_lua(path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            assert not re.search(r"redis\.p?call|KEYS\[|ARGV\[", text), f"line {node.lineno}"


def test_modules_with_scripts_are_found() -> None:
    assert PACKAGE / "_transport" / "commands" / "lock.py" in WITH_SCRIPTS


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
    tree = ast.parse(path.read_text("utf-8"))
    constants = {
        target.id
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(target := node.target, ast.Name)
        if ast.unparse(node.annotation) == "Final" and isinstance(node.value, ast.Tuple)
        if all(isinstance(item, ast.Constant) for item in node.value.elts)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Script":
            for argument in node.args:
                shared = isinstance(argument, ast.Starred) and ast.unparse(argument.value) in constants
                assert shared or isinstance(argument, ast.Constant), f"line {node.lineno}"
