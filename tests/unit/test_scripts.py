"""The Lua files: constants with a head, read from their files, never put together in Python."""

from __future__ import annotations

import ast
import hashlib
import importlib
import re
from pathlib import Path

import pytest

import aiolocks
from aiolocks._transport.requests.scripts import Script

PACKAGE = Path(aiolocks.__file__).parent
LUA = PACKAGE / "lua"
STEPS = sorted(LUA.glob("*.lua"))
SHARED = sorted((LUA / "shared").glob("*.lua"))
FILES = STEPS + SHARED
MODULES = sorted(PACKAGE.rglob("*.py"))
WITH_SCRIPTS = [path for path in MODULES if re.search(r"\bScript\b", path.read_text("utf-8"))]
LONGEST_STEP, LONGEST_SHARED = 60, 200

# The digests by which servers know the scripts. To change a script, change its line here, and look at
# tests/lua again.
FROZEN = {
    "bell_try": "81924979e4bbd78c274d902713606588a28250d6",
    "job_acquire": "db024b5bd5e387d2408b5cf7595e6f124c82eac2",
    "job_enqueue": "8119bfbc6a93eeda3edf698301a2ec4c58de5b9d",
    "job_release": "84e299e29cff1ac06f01f49c92fd30a41c28b336",
    "job_renew": "8f4f3af13be63684210222da0889abe27410a1ef",
    "job_withdraw": "d6dc49400345f9206a716ea10b87615eb023e46c",
    "flight_acquire": "37ff9f4ea96ef58fa04d60223eab909986a70954",
    "flight_publish": "f06b6f7f4482e3aaa37ed258b992ab715c04cc34",
    "force_lock": "e42cea5b9e22f39de6c23def7e634cfccb7573e7",
    "force_permits": "8e464c04530ec1b7b8df269b37f9cb4ecb0a4496",
    "force_spans": "e76b0470b82152f738973fd902c52c4290fa27f5",
    "inspect_names": "ea79b14140f77ab29f9c2284f099f76b6c2e4bb1",
    "fenced_read": "830dc1c3bbb4ffe3a4f14f94473cb4f072462ae8",
    "fenced_write": "3a66be57de5cddbc914f39f642aedc831a41bcde",
    "leadership_annotate": "7a269c7c8c1146a42d72bc00b0fdef14881f1fdf",
    "leadership_look": "6397ee6391211fd92f80eb3ec1b9d56a177037fc",
    "lock_acquire": "6bdc746e95556c16a2340a89c5244e3b5ae4a28f",
    "lock_adopt": "4233ae26841f50637c656c1bc88747c127291db9",
    "lock_annotate": "66133d118ffe3ff4795c7250b7e831a5c3ab391e",
    "lock_locked": "0cb906a1d4f715d231707586a41df55854c3c480",
    "lock_owned": "f997f377c949e56a0fb440034befb421e112e170",
    "lock_release": "b70770232fb45e973c79eed89656678ec928dab6",
    "lock_renew": "47937eeb37f18a4805dd59eed4676496c5768478",
    "locks_renew": "2cf7f247a35936bbb1218737d471ffedd808f521",
    "multi_acquire": "8a40dd704ce45ffd0a5e92ea31c3781dd4c2db71",
    "multi_adopt": "569123d090257bcc976c6c0f47be7d9811d09f3c",
    "multi_annotate": "153e53b7f24f8a86b49f1846662b5209a8639233",
    "multi_locked": "f6d815c31407fba4ecd7d57b1d451f39b0aceade",
    "multi_owned": "75740b42408f5620bb0842c1ad4ca32246671de0",
    "multi_release": "3d62546dca572ab5b70ccdb886d2a892856f2ce4",
    "multi_renew": "5393a1132a3bd3b712f0dbe73712a434be49c6b1",
    "multi_return": "41e8011856d07341f4323eca4e411186c65db6f9",
    "multi_seal": "2cb8ae4c38233cba67f80f585dba692b521e8570",
    "permits_acquire": "899faaf37f0619c3add77ee2c4402c15425c8935",
    "permits_adopt": "dba53f1846887404ac057ac4f9eb48ef0304aa08",
    "permits_annotate": "d6e5155a404e8e9c860a2676b89e69a43c1734d1",
    "permits_available": "3bc8f5186a5e4dd29a1eef03cf48a492462b2cf8",
    "permits_owned": "a842e90229d45656325b3b7163ee208d488b3786",
    "permits_release": "170819561f03b53e1c41132b63eddfc138509013",
    "permits_renew": "ce3621c03b621a798d60a3521d38bd2d5e7e8dcc",
    "permits_resize": "e9de70a585b68e0bee85bb634814a1b1f0c3caf5",
    "queue_arm": "538aeec81ed9275309754c87644e961f4515e681",
    "redlock_seal": "bb15c28bc3bef88a083d4e0b94f3200238fec958",
    "redis_py_acquire": "d5b20c15115f554b990f51b739f26b4a8cfcc3f6",
    "redis_py_extend": "6c8300b535983ce5b45f7f51801c0b4325afcfe2",
    "redis_py_holder": "00555493c09bae2650ecf693b5f38ae9cfeb43f0",
    "redis_py_reacquire": "a12149dedc6a58391bfab616115e83cf76d2a596",
    "redis_py_release": "493c78828b4cc7615dd08fa222e93c34a5f5f34d",
    "reentrant_acquire": "4c43480093091a6b0978e20dc75bab027949ac8d",
    "reentrant_adopt": "722a862c2f59733b2c0a0f3e284949e507298fe0",
    "reentrant_annotate": "9c7932b4d0f06d5c7088ea715e654d37b22e36b8",
    "reentrant_locked": "d068484642a7025b076af39018b0afdaa61c86f9",
    "reentrant_owned": "e11d012f009cb5330fed3fbfe51692489c7c611b",
    "reentrant_release": "b8ba07e7186d2e9c85dc2ed87a79e51fb22e5ac3",
    "reentrant_renew": "a06abf9dd13a07d0d455f04e5d84014d9a2d5185",
    "schedule_claim": "4b77dedc4d9d1866db1c8d4a3724eb9170cae764",
    "schedule_read": "d75a793e22d428e14a11895ba185b9ad7c62f23d",
    "schedule_release": "bf0955ff6d027366d841db0c9dc9ac342c16b029",
    "schedule_trigger": "d987f5966d358332464e5973f463c1fe5b21b623",
    "spans_acquire": "eb6b4780d0fab6ed8e301cd2ce6dc2198bc7f484",
    "spans_adopt": "8ef87570b02e8c937166eee6d094afde312e85f1",
    "spans_annotate": "d6f9eebb24da077f0aad9b449aca9f449c238f6a",
    "spans_change": "f201765d2257a1637e58c0ac3a6bb31d89d6e576",
    "spans_locked": "a69539a265755fa23bf8767d3219d8f42b1a0e11",
    "spans_owned": "9d2fbfea4c3d86da8ae339bd27403dfa77ee4048",
    "spans_release": "b939be8c8dc068993c3fb13a5a22480700840dd2",
    "spans_renew": "646d7476aa3011837aaad82f5600aa2fec9d7064",
    "turnstile_end": "d5ee48b38b2170a40415674db7d0838352909570",
    "turnstile_enter": "35e47c363a45426747a300204f021b59ed24fe91",
    "lock_steal": "41fa1fe78500e4a1f80888da35b84f7f90401238",
    "permits_steal": "aa70c1a245f0d25ac3ffa50d00a419212981238a",
    "reentrant_steal": "75dc87c584faf8d67434fe4fef134effd725b5e1",
    "shared/stolen": "39e0f52746e738ff56d468e45a93f03a1c8622e2",
    "shared/fence": "308a7ed4a6c9c35ef933e5fde7dc0f7d4a6ff7b8",
    "shared/flights": "619d971d02abe088a14a85dd1527f86e43d0b7b7",
    "shared/forcing": "c0979e751d2440cf68e3ef2f9cf6a53dc894b54e",
    "shared/hand_over_lock": "3697b4e32cd502b2264d1b2a63d01f853112db6e",
    "shared/hand_over_nest": "d6ce92556a998f5405e347b100463c6b1cb2496b",
    "shared/hand_over_locks": "16961341683e2a31992cda7e13eab078b6ef6b47",
    "shared/hand_over_permits": "174c57a1a16f15bcf5520bbfeda3a536b32e9bc3",
    "shared/locks": "d299dabdf22f808dfed90e9ace3a35eddf357acb",
    "shared/mid_move": "4f0a38c9f26fd00121976d5da169371f562113d6",
    "shared/mid_move_lock": "ec6a1a24f7f441c5c87725691ecf8e4a03f9dc3a",
    "shared/mid_move_multi": "7053ad1c04506e1654ea52edb59df9c3bd578569",
    "shared/mid_move_nest": "352cbc98c065242ae7e21a5e3e91a1b90512b083",
    "shared/mid_move_permits": "f7c5960f7c1f004c7512204bebe159a9f197549e",
    "shared/mid_move_spans": "6ac1beeff693c7912229d265a482920634909d53",
    "shared/mid_move_runs": "f87c0bfdccf0f78083e9093475d41deb76c0e683",
    "shared/nest": "d8894906d52b300e5003e04300ee64b00e3800a3",
    "shared/permits": "d17274637f39645195e2c828c9eb9d439b51edea",
    "shared/queue": "b59e8d255c03a90efa9e677c26718887388dd1b6",
    "shared/room": "84c6ce14c37ae515d05269bebce17388b4b417ee",
    "shared/runs": "a8beef3a2a972bfe5a5af680329b55f59e0c5fd1",
    "shared/spans": "3003a818be0aa4b1942ec11b04f75df431468b57",
    "shared/mid_move_terms": "7fcf777a093ef49deb91217b866aee626c6b0896",
    "shared/terms": "7febbb828d3f6e3857fc1337681400af91a8faa9",
    "shared/ticks": "5ee9d519a8048c356211bc942fc5787ad28354d5",
    "shared/claims": "7c45ce76c5405d80b8244646b221ad011d0449c6",
    "shared/tickets": "ffebf4a631aaf42ea738e297674026d7f9c2aaf1",
    "shared/forms": "3e53c03d1f31edb0e3d8e3fdc926b05fafec1f6a",
    "shared/bells": "b9365559f851fe103cf3817a100bf3a9e38f4e46",
    "shared/ours": "2b611471bda29a3232a26a6b830c45f7b6279cab",
    "shared/listening": "e7983c40f86924e4a8d76872137204d7bfa81e47",
    "waiters_listen": "081e29f1cdc70e6be1e6a176f8dc838a0f58721f",
    "shared/seats": "172bf79181fdba76b213a407a668feacc177db70",
    "force_limits": "4af336ce263f0cb6cdb04ef6efa7ae436269b625",
    "limits_acquire": "d3a66aa10f2e127da3cb2337080a2e7d1ae252fb",
    "limits_locked": "4d96f120fa96e623c2806088a69ed286a220e32c",
    "shared/limits": "fd29f3a8d2df0f66f737d1b1a84bba547422702c",
    "shared/lines": "fd01a640e989767b161f6c99449bae352f68cc2e",
    "shared/mid_move_limits": "9d3b334a04d0ac7d42c1d1d9919641ae89b07ec1",
    "waits_publish": "1a2908329baeee6fc7fed5529dc60d534ec785af",
}


def name_of(path: Path) -> str:
    """`lock_acquire`, `shared/fence`."""
    return path.relative_to(LUA).with_suffix("").as_posix()


def scripts() -> dict[str, Script]:
    """All that are sent, by name: `permits_acquire`, `permits_acquire+terms` of a kind that keeps more."""
    every: dict[tuple[str, tuple[str, ...]], Script] = {}
    for path in sorted((PACKAGE / "_transport" / "commands").rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        module = importlib.import_module(f"aiolocks.{name}")
        for value in vars(module).values():
            if isinstance(value, Script):
                every.setdefault((value.name, value.shared), value)
    found: dict[str, Script] = {}
    for name, shared in sorted(every, key=lambda one: (one[0], len(one[1]))):
        script = every[name, shared]
        if name not in found:
            found[name] = script
        else:
            assert shared[:-1] == found[name].shared or shared[:4] == found[name].shared[:4], (
                f"{name} stands behind {shared}"
            )
            found[f"{name}+{shared[-1]}"] = script
    return found


SCRIPTS = scripts()
MID_MOVE = {name: script.mid_move for name, script in SCRIPTS.items() if script.mid_move is not None}
"""The same steps in the form for a slot that moves."""

file = pytest.mark.parametrize("path", FILES, ids=name_of)
script = pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
module = pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())


def test_the_scripts_are_the_frozen_ones() -> None:
    digests = {
        name_of(path): hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest() for path in FILES
    }

    assert digests == FROZEN


def test_each_file_is_needed_by_a_script() -> None:
    assert sorted({script.name for script in SCRIPTS.values()}) == [path.stem for path in STEPS]
    used = [*SCRIPTS.values(), *MID_MOVE.values()]
    assert {name for script in used for name in script.shared} == {path.stem for path in SHARED}


@pytest.mark.parametrize("name", MID_MOVE)
def test_the_form_for_a_slot_that_moves_is_the_step_in_its_frame(name) -> None:
    step, mid_move = SCRIPTS[name], MID_MOVE[name]

    assert mid_move.shared[0] == "mid_move"
    assert mid_move.shared[1:-1] == step.shared
    assert mid_move.shared[-1].startswith("mid_move_")
    assert mid_move.text.endswith((LUA / f"{step.name}.lua").read_bytes())


def test_each_step_of_a_holder_has_a_form_for_a_slot_that_moves() -> None:
    """But for redis-py's lock, which has one key, the end of a run, which settles more than its lease, and
    several renewals in one request, which no cluster is sent."""
    verbs = ("annotate", "adopt", "owned", "release", "renew")
    steps = {name for name, script in SCRIPTS.items() if script.name.endswith(verbs)}
    steps -= {"job_release", "schedule_release", "locks_renew"}
    steps = {name for name in steps if not name.startswith("redis_py")}
    assert steps == set(MID_MOVE)


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
            told = numbers_used(what, step)  # n of each: n locks, n fences
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


BUILT_IN = {"error", "ipairs", "pairs", "pcall", "tonumber", "tostring", "type", "unpack"}
KEYWORDS = {"and", "elseif", "if", "in", "not", "or", "return", "while", "function"}


@pytest.mark.parametrize(
    "script",
    [*SCRIPTS.values(), *MID_MOVE.values()],
    ids=[*SCRIPTS, *(f"{name} mid-move" for name in MID_MOVE)],
)
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


def constant_tuples(tree: ast.Module) -> set[str]:
    """Names of the tuples of constants that a module keeps."""
    return {
        target.id
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(target := node.target, ast.Name)
        if ast.unparse(node.annotation) == "Final" and isinstance(node.value, ast.Tuple)
        if all(isinstance(item, ast.Constant) for item in node.value.elts)
    }


@module
def test_scripts_are_named_by_constants(path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    constants = constant_tuples(tree)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            beside = path.parent / f"{node.module}.py"
            if beside.exists():
                theirs = constant_tuples(ast.parse(beside.read_text("utf-8")))
                constants |= theirs & {name.name for name in node.names}
    # The class itself makes the form for a slot that moves out of the same constants.
    trees = [node for node in tree.body if not (isinstance(node, ast.ClassDef) and node.name == "Script")]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Script":
            for argument in node.args:
                shared = isinstance(argument, ast.Starred) and ast.unparse(argument.value) in constants
                assert shared or isinstance(argument, ast.Constant), f"line {node.lineno}"
