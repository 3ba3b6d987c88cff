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
    "job_acquire": "c0fd43168f08d6ccd4ac9b20e391699628bb1e5c",
    "job_enqueue": "279bf05c1ec5e8558097583eff1d672e4407c5a0",
    "job_release": "dffc5ae904c9cf8d6e10db2302c8f6657c4b0ade",
    "job_renew": "8c06c478605a987cddf4a4df69092b7e2246c980",
    "job_withdraw": "462ee87febd02dede26ef72981f423431748cf01",
    "flight_acquire": "ddca6b542923ec210d4f0503321b2a1716c7c290",
    "flight_publish": "11c689ef319d0b077cec40d92f43e2fb259eda61",
    "force_lock": "e8a4f4b55f5b3a47835830e73e62de4d6bc15069",
    "force_permits": "69159005314cce152a70dd05c5299b62e786fbf4",
    "force_spans": "d919e5a4fd8ca4cba45ce4933de08e0ed57b3e1b",
    "inspect_name": "234da4d19b1bf118f45f61b9f42b10c085d0d44f",
    "fenced_read": "cfa0362ae8ec1d471d7fb95613b8672248e0a9b0",
    "fenced_write": "ae044f137db566468e5dde9cee6e93984ec29835",
    "lock_acquire": "649c4c0388984a3ba11b917a07ac6b9e1cdb1fe0",
    "lock_adopt": "4233ae26841f50637c656c1bc88747c127291db9",
    "lock_locked": "0cb906a1d4f715d231707586a41df55854c3c480",
    "lock_owned": "f997f377c949e56a0fb440034befb421e112e170",
    "lock_release": "47ce73538356b3f0569e93e7cf5a7701c73cf09a",
    "lock_renew": "8574254ad36e8d89db07147279fa169815230d04",
    "multi_acquire": "306dc475e6e58f5753397296163abf74176878f6",
    "multi_adopt": "569123d090257bcc976c6c0f47be7d9811d09f3c",
    "multi_locked": "f6d815c31407fba4ecd7d57b1d451f39b0aceade",
    "multi_owned": "75740b42408f5620bb0842c1ad4ca32246671de0",
    "multi_release": "2d66133846a66fca5401d31786d982e595be11d8",
    "multi_renew": "d708715d3f3952dcf2966eb495f38a0489bac588",
    "multi_return": "873517baecc520a16464ccd9a0f1f6b12fe11d8e",
    "multi_seal": "87e6521a0af2739527f3074aef41351264537a3b",
    "permits_acquire": "4de9711b9d101539e5a185bd781ca981da5449c6",
    "permits_adopt": "75aeb5159b66e2bab5572d005c8f889d6a21e7ed",
    "permits_available": "2182ca2ba6b0c632051e09795da59fb3c8197e63",
    "permits_owned": "a842e90229d45656325b3b7163ee208d488b3786",
    "permits_release": "7127df65eb0ba2b54d02887387866bfdd0f0fa3a",
    "permits_renew": "f1e7406d2d007a2d86b5a6b337149f7aebec87e6",
    "permits_resize": "6c4d9c5e876f9d55eb28aa7dacad9f7902e71cef",
    "queue_arm": "4c94bbdbd6b5f7f086c606b2dc59d2f9432b6c42",
    "redlock_seal": "fd8cbc29501ffa9e7cb2ebe9a83b6d34d0312fa0",
    "redis_py_acquire": "1dc70dc23f450a961689a3ad633e56ea50bf9b54",
    "redis_py_extend": "6c8300b535983ce5b45f7f51801c0b4325afcfe2",
    "redis_py_holder": "384ad311dda8dd454670181a52e02fd5570a0314",
    "redis_py_reacquire": "33f4677806c7780c617db407b1785b69f4ad10c4",
    "redis_py_release": "493c78828b4cc7615dd08fa222e93c34a5f5f34d",
    "reentrant_acquire": "5d5c461d3f6748e229db8a13cf35e435649487c0",
    "reentrant_adopt": "d113dd1221fd1e2575e493edd6a370f9551fbce4",
    "reentrant_locked": "d068484642a7025b076af39018b0afdaa61c86f9",
    "reentrant_owned": "a4b4aca65399af51714d738f4e456fdea528e7e8",
    "reentrant_release": "351b1eeeb7c32266168869790390c5c713bee706",
    "reentrant_renew": "8186a1232ab56c0d86d554a778e927e45bcde6bd",
    "spans_acquire": "9a847ca12109b288b52fccdd42dfc8cc2c622444",
    "spans_adopt": "a2c71cdb8d09d54ab1bec27d60fb96c8b98e257f",
    "spans_change": "3f5887026f9dcd38e58fc6d6647da14122ea3b82",
    "spans_locked": "725329897207f090f97a5f90c106207858aaaf49",
    "spans_owned": "9d2fbfea4c3d86da8ae339bd27403dfa77ee4048",
    "spans_release": "423181e52e528e0b86d1aaee370d2879e54a7a98",
    "spans_renew": "37bb1cbd1647b4c012e7fd5038d8d42df5c192da",
    "turnstile_end": "d5ee48b38b2170a40415674db7d0838352909570",
    "turnstile_enter": "a2832971dcb89b55faa521514a92af21e449301b",
    "shared/fence": "5655e92ca2808968f35dca87680b4f48bfbcc6e2",
    "shared/flights": "b60102ff3aa0b1794ccf4c67d69389fb8e49382f",
    "shared/forcing": "54a21978b6c909541ec614d529473853bd2a7971",
    "shared/locks": "0bba47ba5b5bd96f6f5666923609ecc6974030d6",
    "shared/nest": "7a652324006aaf5bbdce08b76a885e594f3bb356",
    "shared/permits": "8c71f6e5781ed6f7d61d6105b0256679b621a97a",
    "shared/queue": "75ab8321124af10a221e7d4ee29be6f2ca80aed4",
    "shared/room": "bfedb3b279af2632b82f816e6760ed59bd9a953d",
    "shared/spans": "1c68952c66bb39b1d9b91db5a8fddc6be9676c72",
    "shared/tickets": "0008413d8b54b3f914a33f21d9d5cb4d84ed7d1e",
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
