"""The verdict on mutants is kept for the very scripts and checks that it was found with."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiolocks.transport.request import lua_sections
from tests.kinds import declared
from tests.lua import mutants
from tests.lua.mutants import depended_on, digest, is_judged

TEXTS = depended_on()


def test_a_change_of_any_script_check_or_runner_ends_it() -> None:
    before = digest(TEXTS)
    sections = lua_sections().keys() - {name for names in declared("JUDGED") for name in names}
    assert sections | {"mutants.py", "scripts.py", "test_lock_scripts.py", "sit.lua"} <= TEXTS.keys()
    assert {name for name in TEXTS if digest({**TEXTS, name: TEXTS[name] + b" "}) == before} == set()
    assert {
        name for name in TEXTS if digest({one: TEXTS[one] for one in TEXTS if one != name}) == before
    } == set()


@pytest.mark.parametrize("kept", [None, "as it is", "as it was"])
def test_mutants_are_judged_where_it_is_another_one(
    kept: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "verdict.txt"
    monkeypatch.setattr(mutants, "VERDICT", path)
    if kept is not None:
        changed = TEXTS if kept == "as it is" else {**TEXTS, "lock_acquire": b"return 1"}
        path.write_text(f"{digest(changed)}\n")
    assert is_judged() is (kept == "as it is")


def test_each_test_that_judges_is_known_by_its_name() -> None:
    asks = ("unnoticed(", "surviving(", ".notices(", "await fails(", "told_by_nothing(")
    for name, text in TEXTS.items():
        if not name.startswith("test_") or name == "test_verdict.py":
            continue
        for function in text.decode().split("\nasync def test_")[1:]:
            if any(word in function.partition("\n\n\n")[0] for word in asks):
                assert mutants.JUDGES.match(f"test_{function}"), (name, function.partition("(")[0])
