"""The project is written in Plain English, as far as patterns can tell; and the patterns are right."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("plain_english", ROOT / ".ci/plain_english.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_project_is_written_in_plain_english(tool, capsys) -> None:
    assert tool.main(ROOT) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("Who waits first is let in.", "name the subject first"),
        ("All is well. Whatever it ran is over.", "name the subject first"),
        ("**What it is.** A lock.", "name the subject first"),
        ("[What it is](page.md) is told there.", "name the subject first"),
        ("The waiter loses his place.", "software is *it*"),
        ("The ttl is set anew.", "write *again*"),
        ("It waits for so many seconds.", "name the number"),
        ("The lock is to be released.", "write *must*"),
    ],
)
def test_each_rule_finds_its_fault(tool, text: str, advice: str) -> None:
    assert [advice for _, advice in tool.findings(text)] == [advice]


@pytest.mark.parametrize(
    "text",
    [
        "What does it cost?",
        "The first waiter knows who has the lock, and what it is for.",
        "Write *again* and not *anew*.",
        'It says `what he is to be` and "so many".',
        "So many tasks wait that the server is slow.",
        "[The page](he.md) is another one.",
    ],
)
def test_plain_sentences_are_left_alone(tool, text: str) -> None:
    assert [*tool.findings(text)] == []


PYTHON = '''"""What it is."""

NAME = "what"  § who asks
§ A comment goes on
§ in one sentence. What follows
§ is another one.

def function(what):
    """Is fine.

    Args:
        what: Whose it is.
        other: Is fine.

    ```
    What a block has does not count.
    ```
    """
'''.replace("§", "#")
MARKDOWN = "# Who waits\n\n- Fine\n- What not\n\n| what | fine |\n|---|---|\n\n```sh\nwhat\n```\n"
LUA = "-- Fine,\n-- and fine.\nlocal what = 1  -- what it is\n--\n-- He waits.\n"


@pytest.mark.parametrize(
    ("suffix", "source", "lines"),
    [(".py", PYTHON, [1, 3, 4, 12]), (".md", MARKDOWN, [1, 4, 6]), (".lua", LUA, [3, 5])],
)
def test_it_reads_prose_and_no_code(tool, suffix: str, source: str, lines: list[int]) -> None:
    found = [line for line, text in tool.READERS[suffix](source) if [*tool.findings(text)]]
    assert sorted(found) == lines
