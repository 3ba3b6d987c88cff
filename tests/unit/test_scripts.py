"""The Lua files: constants with a head, read from their files, never put together in Python."""

from __future__ import annotations

import ast
import hashlib
import importlib
import re
from functools import cache
from pathlib import Path

import aiolocks
from aiolocks.transport.request import Script, lua_sections
from tests.kinds import declared
from tests.support.each import each

PACKAGE = Path(aiolocks.__file__).parent
LUA = PACKAGE / "lua"
FILES = sorted(LUA.glob("*.lua"))
SECTIONS = lua_sections()
MODULES = sorted(PACKAGE.rglob("*.py"))
WITH_SCRIPTS = [path for path in MODULES if re.search(r"\bScript\b", path.read_text("utf-8"))]

# The digests by which servers know the scripts. To change a script, change its line here, and look at
# tests/lua again, with `-m more` too: of the hundreds of mutants, a run has a third.
FROZEN = {
    "bell_try": "778baf6ff2e29ef392c5329f4d9820d993a5edc7",
    "job_acquire": "068de13eda2be4e98354ec93184a6386d5b7ab46",
    "job_enqueue": "1aca5c9d312ef8fef57146e002fc80df247b74e2",
    "job_release": "7203d63d15d372e638df4edfc43de3941d35d702",
    "job_renew": "4414191886248a08146815016177d6f412e7277b",
    "job_withdraw": "f895293e6e3571587390f1d82c86979d5b0c09e7",
    "flight_acquire": "f2118570028936b105a014c81d5d73501cbe777d",
    "flight_forget": "7aea2cf0ebb072a19996f551efc7fb6705324860",
    "flight_publish": "e7fb2cb91ba135a41c44e758620751e10cd95e27",
    "force_lock": "9d1153bb6c58c5c87f43894d0f67a8d7c5087db9",
    "force_permits": "fe629250fb30c1c1532a5f0e76df4cad9ed5fcfb",
    "force_spans": "4b3cd6f5d8f10d6d4f87dc4a2fe5a22cf8bdaafc",
    "inspect_names": "4b8d38a6d7f1de2ac70f3a2867bdd1b254c1ae2c",
    "fenced_read": "fecc704536be6254fee43b0f929af1f8bc213895",
    "fenced_write": "797d441f28208dfeb6694e0eb741da96935a37c9",
    "leadership_annotate": "4f2d3032e79ab5de57f48966d05b13c8c5d313eb",
    "leadership_look": "839a07d77e3d264a5fa0e7eccc50c9352158267a",
    "lock_acquire": "94ea7e747cd8781b268355aaec5d666c3c8f1a21",
    "lock_adopt": "7db939b6616c262845cad4b8981866ed72292d04",
    "lock_annotate": "af89e414945ffbb9a7197de26d29125bc582fcbd",
    "lock_locked": "0cb906a1d4f715d231707586a41df55854c3c480",
    "lock_owned": "f997f377c949e56a0fb440034befb421e112e170",
    "lock_release": "6c433c87ba19205c7e8034cbbaa85ce29d02e9df",
    "lock_renew": "7e659a4df6e84d9f2ad56070ccc387ac3515ad54",
    "multi_acquire": "0c32d11d0961ff06d3161bac97d1197652549365",
    "multi_adopt": "2cb15f121d4d2458d415268a4c6d119bd957da42",
    "multi_annotate": "91154516bfb8b50ca4475c30f92d00f1243c00f3",
    "multi_locked": "f6d815c31407fba4ecd7d57b1d451f39b0aceade",
    "multi_owned": "f3679c802baeefd1a536116ba991f4952b582c1a",
    "multi_release": "c3ee8973d1c44c6fd355f256f267367a6775ddd9",
    "multi_renew": "208db10b124fcdc8e080d60f4ce07e0c4c4959e6",
    "multi_return": "7b0e799dc5ed2b0b443c77bef36dc70632a2eccd",
    "multi_seal": "bbb534b59c91f78bbd8ac91409703ddcf1355fa7",
    "permits_acquire": "2fa6491f3ecc9968ccdb1612383b24097554e9be",
    "permits_adopt": "d59c21a3e165d160956e039e8f740bd9af1a20f1",
    "permits_annotate": "77b72a42838fd48cb2c21ded6a53157cd37d53f2",
    "permits_available": "43cde7a8597884931c9d15cd175a30393da9b78b",
    "permits_owned": "a842e90229d45656325b3b7163ee208d488b3786",
    "permits_release": "cc3b8d38466741a5fd343a280e94bec55f01b097",
    "permits_renew": "110fc96eff5e612d058862ea263bebf0e00e0912",
    "permits_resize": "1da70b319ad73c455f4afde7ef7090943133f57b",
    "redlock_seal": "e05b4f0a7e48f5ca541947110f6125de6bcbd2e2",
    "redlock_vote": "b22fde50313995bfa6905e57882c819b32ac644c",
    "redis_py_acquire": "c1d80ee0d880fb60d3ae3cdb929063293efdb836",
    "redis_py_extend": "d756e2a926bcbeb9914105c10d1d7d80f273fe67",
    "redis_py_holder": "8e951ec23edf2bd1bae3171bddff204bceb1d7b6",
    "redis_py_reacquire": "b391e39bfc6c17b3e291abad817e5b5b8c2492c5",
    "redis_py_release": "3471b28296c7b42612e9dfc372697f7b92b69686",
    "reentrant_acquire": "817fbd5e3b78768cf8743491be58fba3100e5a85",
    "reentrant_adopt": "769e4e05841108b754316f941c3115c116fce236",
    "reentrant_annotate": "9c11db31614baadff600d24da816e8a210d10f2f",
    "reentrant_locked": "d068484642a7025b076af39018b0afdaa61c86f9",
    "reentrant_owned": "ccb4b64f97970fb5aaf74c2941e527505b637da8",
    "reentrant_release": "314d66f00be26ba44d064496aecf58241d5829b2",
    "reentrant_renew": "e1209225584f88a22decc011c973ed32ec2bffdd",
    "schedule_claim": "1149ca66c994d9d8b1ff2169cab477d135d94b93",
    "schedule_read": "d4572de877a9ab91c280c1ea4d43577953b18d21",
    "schedule_release": "b6524e798477d7745cb760f516855d41e9e63322",
    "schedule_trigger": "da160a61089ed90bd04215838bfc0862e3912739",
    "spans_acquire": "2f982310566120bd9d02f1a29cece379d7450e05",
    "spans_adopt": "ad32aa817cc1ded5ce1c6b545094400237fb002b",
    "spans_annotate": "55a4c761ff0c663e6381cadd903fe6b4dd3b7635",
    "spans_change": "d9f2d378f95efa7dcd9c1b33aadad2af356eea65",
    "spans_locked": "70ab9d21df1a3599b1aa5f98edacb0acc1bd083c",
    "spans_owned": "051a7580befd8c98fe254fce9850b83de1681f1c",
    "spans_release": "4132d5eaba60bfec4b9f963e5256377c2a4a25b0",
    "spans_renew": "8c6e4be3f3f94a0acc927185cabd6c20f731267f",
    "once": "6a84cf1be8c86f5dc9d39e242b553d8cdb007ea4",
    "latches": "4ae8fd622b756cd028929746d31c77b88f894e24",
    "latch_wait": "32d0e0ab9049ba2b6ddccd3e1a8cfd0a8486aef9",
    "latch_count_down": "d9ebf443e4b196f9d64c5668b4bb22afc4d68d17",
    "latch_reset": "61091b434b6e7d6828144ef8457c649f6d17072b",
    "rate_log": "1a4259bc7362de0d08c497fd48b9372051d986db",
    "rates": "e4e724d43ef61c0685826d8b8f50a3ef069ef56b",
    "ratelimit_acquire": "c47701e5853b616924d85072430ae3bacf945a35",
    "ratelimit_reset": "c982da3d97d39263d6fe49893ad6902019218d47",
    "ratelimit_settle": "1dc9b7879186674d5aab99729383698528d6ba1d",
    "ratelimit_straight": "31bc90fcb62aa2ccf4108e3a0821cdbb92a15d80",
    "turnstile_end": "c94120a9bf6d7cee4aa99236463377a7361bdb45",
    "turnstile_enter": "5d44c91572c1d769af283253dfc7afb61a356c54",
    "lock_steal": "dd30b45fa0380aa6a2ba237a0dd3c1e4ad9204ff",
    "permits_steal": "f7c8778b8cbcb23e92aa863a96236655c15c1da7",
    "reentrant_steal": "8f3b4a4e2bb69f3ecf7a50797c0910c1b323190b",
    "stolen": "eb955e310f77a431f2bc62479fcd4517538a3db4",
    "fence": "fc638a33bfb622582c434bf24100af245548c05e",
    "flights": "b2846a0876a57bee5264e30e894376c016d1f336",
    "forcing": "c579452a465fa73d73151c4de1570000cdb6362e",
    "hand_over_lock": "94d74dd4d456a51b819816562331c60be035a1bb",
    "hand_over_nest": "b4df6080da228a300df3e1ad807b88d16b43ca57",
    "hand_over_locks": "43a1e6e510876c12f88e11700eb80fb7b15bdfb7",
    "hand_over_permits": "a06ab03c30d4af1acbff581ad2c1d6447c17b539",
    "hand_over_spans": "ad21b70548bd519f6355861b100dca4676a87e6f",
    "hand_over_limits": "0442b518164e815dbd1f2d513a261f78b9905d0b",
    "lock_straight": "a388f8e3109a5257b73e1cc27b0e42ee267b198c",
    "locks": "5f72789c3bc6bf2d86a5f8f46bbee2cb1530e34c",
    "slot_stays": "02c1e3d733935be0b4e853fee9d4b653d0e885db",
    "mid_move": "30421dd16959689188aea4ef573168d9bb47c963",
    "mid_move_lock": "e49070a5b8bbd545525bba82127d2f4c77fb5512",
    "mid_move_multi": "78b841b003c47fd6f468a8754d69bab5eca39710",
    "mid_move_nest": "2a928c5c9b7f4103bd94a24b62a2a08775efa6fa",
    "mid_move_permits": "e91fbd3c36ae2220bfec32b97c35a6aa96fc0d2c",
    "mid_move_spans": "8151119a3fb27c4f924c0fcf263b2ef5345d1f16",
    "mid_move_runs": "669642fa275f10c2bfdd8b5576b7891f8b8f484b",
    "nest": "08077190b7551ced6cb05f6fceb5934927e5c66b",
    "permits": "b5b23dfd39a17cae19713ceeabe19d75f4f3cc4f",
    "queue": "182b37ee0266e0a29b0da56ba7ad996c56bf7f15",
    "room": "7bfa0c5dacc5cb1dbe28ef742556b2f5950e0d9c",
    "runs": "f4395b44f3486a6e5bd5df70a5978da3734b9773",
    "spans": "af84d2fabd37d7af8f8566a0961916f7513476f0",
    "mid_move_terms": "cd99a405a9fed63a03864247eb52cb63a5acd34c",
    "terms": "25cbbaabaf0b4c8a59987ae97244384383bef3db",
    "ticks": "067dd1669d9417ffe5831869b3f71a0eece0bab9",
    "claims": "2345b67f592402e2423614289854b1b49b4d4996",
    "tickets": "38a59d771f443e9e74c2a86f37888b8a38f8d432",
    "forms": "803048be9ae9d999698981fe1d08502e7a8f1651",
    "bells": "43ad52dfb4f61d461a7a20905b6a94a7b26c3665",
    "ours": "8f41aad103b04b23c78c81850dbb13d7d285c12c",
    "listening": "faf95688a97fa5790371ebac6ca28e80c5399b6f",
    "waiters_listen": "f2f9c06047e06b5cde7551da84265bfe65db422b",
    "seats": "b3a23d02af2a3606eda0f4ca55105fb4f89931c0",
    "force_limits": "3c0b73a5337b339716c33d8f7f10cbd2a8fd0253",
    "limits_acquire": "c52089f0a4901235915a04a1d89472168c3cec87",
    "limits_locked": "5e8adbebf561899da9e20d627b2eff423008504d",
    "limits": "cd82a7842a57065114cd385fbcd42bf607e6d652",
    "lines": "a1421a78852146952a6a81f468a998cf86ad7887",
    "mid_move_limits": "a1d658c096611a3943f8275b330ce55aa178b897",
    "waits_publish": "986c6dc65a3b0d44d87f7a7333f960523154e4ec",
    "recall": "35f94f7bd0729ba2a6680a5595bb95fb82008785",
    "lock_keep": "2bde9d3e615d38340faeb8e34bbd5b4438ae46ce",
    "lock_renew_kept": "8952e31eb7b9239dc069a0fa170c06977c25e11d",
    "give_back": "5af3cd35ccfa47f93ae5bf63b825445ffe0d2b0b",
    "locks_release": "e4e7a21c53efe40d39152bc2faf3261a9f569157",
    "adopt_kept": "e0c0341d292d55d6913a4d00f6414e22232faa1b",
}


def scripts() -> dict[str, Script]:
    """All that are sent, by name: `permits_acquire`, `permits_acquire+terms` of a kind that keeps more."""
    every: dict[tuple[str, tuple[str, ...]], Script] = {}
    for path in WITH_SCRIPTS:
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
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

file = each("path", FILES)
section = each("section", SECTIONS.values())
script = each("script", SCRIPTS.values())
module = each("path", MODULES)


def test_the_scripts_are_the_frozen_ones() -> None:
    digests = {name: hashlib.sha1(text, usedforsecurity=False).hexdigest() for name, text in SECTIONS.items()}

    assert digests == FROZEN | {name: digest for more in declared("FROZEN") for name, digest in more.items()}


def test_each_section_is_needed_by_a_script() -> None:
    used = [*SCRIPTS.values(), *MID_MOVE.values(), *(script.guarded for script in SCRIPTS.values())]
    assert {name for script in used for name in (script.name, *script.shared)} == SECTIONS.keys()


def test_a_section_stands_once_and_files_are_nothing_but_sections() -> None:
    named = []
    for path in FILES:
        head, *texts = path.read_bytes().split(b"\n--# ")
        assert re.fullmatch(rb"-- [^\n]+\.\n", head), path
        assert texts
        named += [text.split(b"\n", 1)[0].decode() for text in texts]
    assert sorted(named) == sorted(SECTIONS)


@each("name", MID_MOVE)
def test_the_form_for_a_slot_that_moves_is_the_step_in_its_frame(name) -> None:
    step, mid_move = SCRIPTS[name], MID_MOVE[name]

    assert mid_move.shared[0] == "mid_move"
    assert mid_move.shared[1:-1] == step.shared
    assert mid_move.shared[-1].startswith("mid_move_")
    assert mid_move.text.endswith(SECTIONS[step.name])


def test_each_step_of_a_holder_has_a_form_for_a_slot_that_moves() -> None:
    """But for redis-py's lock, which has one key, the end of a run, which settles more than its lease, and
    several releases in one, which may be refused there: then each ends with its ttl."""
    verbs = ("annotate", "adopt", "owned", "release", "renew", "renew_kept")
    steps = {name for name, script in SCRIPTS.items() if script.name.endswith(verbs)}
    steps -= {"job_release", "schedule_release", "locks_release"}
    steps = {name for name in steps if not name.startswith("redis_py")}
    assert steps == set(MID_MOVE)


@script
def test_in_a_cluster_a_step_stands_behind_its_guard_or_needs_none(script) -> None:
    if script.guarded is not script:
        assert script.guarded.text == SECTIONS["slot_stays"] + script.text
        assert script.guarded.guarded is script.guarded


@script
def test_a_script_is_its_sections_byte_for_byte(script) -> None:
    text = b"".join(SECTIONS[name] for name in (*script.shared, script.name))

    assert script.text == text
    assert script.sha.decode() == hashlib.sha1(text, usedforsecurity=False).hexdigest()
    assert repr(script) == f"<Script {script.name}>"


def test_what_several_steps_share_stands_in_front_in_the_order_given() -> None:
    texts = [SECTIONS[name] for name in ("fence", "locks", "multi_acquire")]

    assert Script("multi_acquire", "fence", "locks").text == b"".join(texts)
    assert Script("multi_acquire", "locks", "fence").text == texts[1] + texts[0] + texts[2]
    assert Script("multi_acquire").text == texts[2]


@script
def test_the_head_says_what_goes_in_and_what_comes_out(script) -> None:
    step = SECTIONS[script.name].decode()
    lines = head_of(step)

    assert any(line.startswith("Returns ") for line in lines)
    for what in ("KEYS", "ARGV"):
        told = numbers_told(what, lines)
        if what == "KEYS" and not told and script.shared:
            told = numbers_used(what, step)  # n of each: n locks, n fences
        assert numbers_used(what, step) <= told, what
        assert told <= numbers_used(what, script.text.decode()), what


@section
def test_the_head_says_what_it_is_for(section) -> None:
    assert re.search(r"\.$", "\n".join(head_of(section.decode())), re.MULTILINE)


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
def test_is_ascii_with_unix_line_ends(path) -> None:
    text = path.read_bytes().decode()

    assert re.sub(r"--.*", "", text).isascii()
    assert "\r" not in text
    assert text.endswith("\n")


BUILT_IN = {"error", "ipairs", "pairs", "pcall", "tonumber", "tostring", "type", "unpack"}
KEYWORDS = {"and", "elseif", "if", "in", "not", "or", "return", "while", "function"}


@each("script", [*SCRIPTS.values(), *MID_MOVE.values()])
def test_has_no_global_variables(script) -> None:
    """A server refuses them only when the line is executed."""
    text = re.sub(r"--.*|'[^'\n]*'", "", script.text.decode())
    local = set(re.findall(r"\w+", " ".join(re.findall(r"\blocal ([\w, ]+)", text))))
    local |= set(re.findall(r"\w+", " ".join(re.findall(r"\bfor ([\w, ]+) in\b", text))))
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
    assert PACKAGE / "transport" / "steps" / "lock.py" in WITH_SCRIPTS
    assert PACKAGE / "kinds" / "permits.py" in WITH_SCRIPTS


@each("path", WITH_SCRIPTS)
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


@cache
def constant_tuples(path: Path) -> set[str]:
    """Names of the tuples of constants that a module keeps."""
    tree = ast.parse(path.read_text("utf-8"))
    return {
        target.id
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(target := node.target, ast.Name)
        if ast.unparse(node.annotation) == "Final" and isinstance(node.value, ast.Tuple)
        if all(isinstance(item, ast.Constant) for item in node.value.elts)
    }


@each("path", WITH_SCRIPTS)
def test_scripts_are_named_by_constants(path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    constants = set(constant_tuples(path))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            beside = path.parents[node.level - 1] / f"{node.module}.py"
            if beside.exists():
                constants |= constant_tuples(beside) & {name.name for name in node.names}
    # The class itself makes the form for a slot that moves out of the same constants.
    trees = [node for node in tree.body if not (isinstance(node, ast.ClassDef) and node.name == "Script")]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Script":
            for argument in node.args:
                shared = isinstance(argument, ast.Starred) and ast.unparse(argument.value) in constants
                assert shared or isinstance(argument, ast.Constant), f"line {node.lineno}"
