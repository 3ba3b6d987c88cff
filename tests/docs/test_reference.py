"""The reference is complete: every public name, event, logger, option and permission, and no other."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import logging
import re
from pathlib import Path

import click
import pytest

import aiolocks
import aiolocks.sync
import aiolocks.testing
from aiolocks import Lock, Session
from aiolocks.cli import exits
from aiolocks.cli.app import app
from aiolocks.contrib.idempotency import IdempotencyMiddleware
from aiolocks.contrib.idempotency._policy import Policy
from aiolocks.lock import events
from aiolocks.lock.acquirable import Acquirable
from aiolocks.transport.steps.family import kinds
from tests.conftest import Connect, OwnServer
from tests.docs.markdown import read
from tests.lua.test_acl import COMMANDS, KEYSPACE, KNOWS_ITSELF, TRACKING

ROOT = Path(__file__).parents[2]
REFERENCE = {path.stem: read(path).prose for path in (ROOT / "docs" / "reference").glob("*.md")}
HOW_TO = read(ROOT / "docs" / "how-to" / "use-in-production.md")


KINDS = {kind.title: kind for kind in kinds().values() if kind.needs}
"""The kinds whose scripts call more than those of `Lock`."""


def section(heading: str) -> str:
    """The text under a heading, of the first or the second level."""
    for prose in REFERENCE.values():
        if found := re.search(rf"^##? {heading}\n(.*?)(?=^## |\Z)", prose, re.MULTILINE | re.DOTALL):
            return found[1]
    raise AssertionError(f"the reference has no {heading}")


def first_cells(heading: str, pattern: str) -> set[str]:
    """The code that stands alone in the first cells of a section's tables."""
    return set(re.findall(rf"^\| `({pattern})` \|", section(heading), re.MULTILINE))


def sources(*, cli: bool) -> str:
    paths = (ROOT / "aiolocks").rglob("*.py")
    return "".join(path.read_text() for path in paths if ("cli" in path.parts) is cli)


def test_it_has_every_public_name() -> None:
    pages = "\n".join(REFERENCE.values())
    described = set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    assert "aiolocks.errors" in described  # all of them
    public = {f"aiolocks.{name}" for name in {*aiolocks.__all__} - {*aiolocks.errors.__all__, "__version__"}}
    public.remove("aiolocks.LockEvent")  # a table of its own
    public |= {f"aiolocks.testing.{name}" for name in aiolocks.testing.__all__}
    public |= {f"aiolocks.sync.{name}" for name in aiolocks.sync.__all__}
    contrib = {name for name in described if name.startswith("aiolocks.contrib.")}
    assert public == described - contrib - {"aiolocks.errors"}


# How to use a FencedRegister is a part of the page on fencing.
@pytest.mark.parametrize("kind", [*(kind for kind in KINDS if kind != "FencedRegister"), "Redlock"])
def test_each_kind_has_its_row_and_its_page(kind: str) -> None:
    which = ROOT / "docs" / "how-to" / "which-one.md"
    pages = re.findall(rf"\[(?:a )?`{kind}`\]\(([^)#]+)", which.read_text("utf-8"))
    blocks = [block for page in pages for block in read(which.parent / page).blocks]
    assert any(f"{kind}(" in block.text for block in blocks if block.language == "python")


def test_every_page_is_in_the_navigation() -> None:
    named = re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    docs = ROOT / "docs"
    assert sorted(named) == sorted(page.relative_to(docs).as_posix() for page in docs.rglob("*.md"))


COMMON = "Options that are not described here are those of `Lock`."
"""The site makes a link of it: `tests.docs.signatures`."""
OPTIONS = list(inspect.signature(Lock).parameters.values())[2:]


def option_texts(kind: type) -> dict[str, str]:
    """The texts of those options that the docstring describes."""
    text = inspect.cleandoc(kind.__doc__ or "")  # from Python 3.13 on, it has no indentation of its own
    found = re.findall(r"^    (\w+): (.+(?:\n {5,}.+)*)", text, re.MULTILINE)
    names = {option.name for option in OPTIONS}
    return {name: text for name, text in found if name in names}


def test_common_options_stand_once() -> None:
    rows = re.findall(r"^\| (`.+`) \| (.*?) ?\| (.*?) ?\|$", section("Common options"), re.MULTILINE)
    words = [[re.findall(r"`(\w+)`", cell) for cell in row] for row in rows]
    listed = {kind: (without, others) for kinds, without, others in words for kind in kinds}
    texts = option_texts(Lock)
    assert texts.keys() == {option.name for option in OPTIONS}
    public = {name: getattr(aiolocks, name) for name in aiolocks.__all__}
    held = {name for name, one in public.items() if isinstance(one, type) and issubclass(one, Acquirable)}
    assert held - {"Lock", "SpanLock"} <= listed.keys(), "Common options, of docs/reference/lock.md"
    for kind, (without, others) in listed.items():
        made = public[kind]
        taken = inspect.signature(made).parameters
        own = option_texts(made)
        assert not own.items() & texts.items(), f"{kind} repeats what Lock says"
        assert sorted(without) == sorted(option.name for option in OPTIONS if option.name not in taken), kind
        for option in OPTIONS:
            if option.name in taken:
                assert (taken[option.name].default == option.default) is (option.name not in others), option
                assert option.name in own or COMMON in made.__doc__, f"{kind} says nothing of {option.name}"


def test_idempotency_keys_show_each_option_with_its_default() -> None:
    """The site shows the signature with the defaults that the code has; the texts say the units."""
    import griffe

    from tests.docs.signatures import Signatures

    package = griffe.load(
        "aiolocks", search_paths=[ROOT], extensions=griffe.load_extensions(Signatures()), resolve_aliases=True
    )
    shown = {
        parameter.name: str(parameter.default)
        for parameter in package["contrib.idempotency._middleware.IdempotencyMiddleware.__init__"].parameters
    }
    options = {field.name: field.default for field in dataclasses.fields(Policy)}
    assert options.keys() <= shown.keys()
    for name, default in options.items():
        assert eval(shown[name]) == default, name
    text = inspect.cleandoc(IdempotencyMiddleware.__doc__ or "")
    said = dict(re.findall(r"^    (\w+): (.+(?:\n {5,}.+)*)", text, re.MULTILINE))
    for name in options:
        assert "Default:" in said[name], name
    in_words = {"ttl": "30", "keep": "86 400, a day", "wait": "0", "max_body": "1 MiB", "max_kept": "16 MiB"}
    for name, words in in_words.items():
        assert said[name].startswith(("Seconds", "Bytes")), name
        assert re.search(rf"Default:\s+{words}", said[name]), name


def test_it_has_every_event_and_its_fields() -> None:
    fields = {field.name for field in dataclasses.fields(events.LockEvent)}
    assert {*events.HOOKS} | fields == first_cells("Listeners", r"\w+")


def test_it_has_every_logger() -> None:
    loggers = set(re.findall(r'get_logger\("([\w.]+)"\)', sources(cli=False)))
    assert loggers == first_cells("Logs", r"[\w.]+")


def test_it_has_every_option_status_and_variable() -> None:
    params = [param for command in app.commands.values() for param in command.params]
    options = {option for param in params if isinstance(param, click.Option) for option in param.opts}
    assert options == first_cells("Command line", r"--[\w-]+")
    variables = set(re.findall(r'"(AIOLOCKS_\w+)"', sources(cli=True)))
    assert variables == first_cells("Command line", r"AIOLOCKS_\w+")
    shown = re.findall(r"^\| ([\d, ]+) \|", section("Command line"), re.MULTILINE)
    statuses = {value for name, value in vars(exits).items() if name.isupper()}
    assert statuses == {int(number) for cell in shown for number in cell.split(",")} - {0, 2}


# -- the minimal ACL


@functools.cache
def minimal_acl() -> tuple[tuple[str, ...], ...]:
    """The commands that set it up, as words."""
    (block,) = [block for block in HOW_TO.blocks if block.title == "Minimal ACL"]
    return tuple(tuple(line.split()) for line in block.text.strip().splitlines())


def allowed_commands() -> set[str]:
    return {rule[1:] for rule in minimal_acl()[0] if rule.startswith("+")}


def test_it_explains_each_permission() -> None:
    rows = re.findall(r"^\| (`.+?`) \| ", section("Permissions"), re.MULTILINE)
    explained = {command.replace(" ", "|") for row in rows for command in re.findall(r"`(.+?)`", row)}
    assert explained == allowed_commands() | OPTIONAL


OPTIONAL = {"select", *KNOWS_ITSELF, *TRACKING}


def test_the_minimal_acl_is_minimal() -> None:
    # `COMMANDS` are shown to be needed where they come from.
    assert allowed_commands() == {*COMMANDS, *KEYSPACE}


def test_of_all_that_may_be_appended_the_page_says_what_the_risk_is() -> None:
    rows = re.findall(r"^- `(\+[^`]+)`: .*(?:\n  .*)*The\s+risk:\s", HOW_TO.prose, re.MULTILINE)
    assert {word.removeprefix("+") for row in rows for word in row.split()} == {*OPTIONAL, "scan"}


@pytest.mark.parametrize("without", [set(), OPTIONAL], ids=["whole", "least"])
async def test_the_minimal_acl_is_enough(
    own_server: OwnServer, connect: Connect, without: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    own = await own_server()
    admin = connect(own)
    for words in minimal_acl():
        await admin.execute_command(*words)
    if not without:
        await admin.execute_command("ACL", "SETUSER", "locks", *(f"+{word}" for word in OPTIONAL))
    client = connect(own, username="locks", password="secret", db=0 if without else 1)
    async with Session(client, prefix="shop") as session:
        lock = Lock(session, "name", ttl=1)
        async with lock as lease:
            assert await lock.locked()
            assert await lock.try_acquire() is None
            await asyncio.sleep(0.5)  # a renewal
            await admin.client_kill_filter(_type="normal", skipme=True)
            await lease.extend(2)
            handle = lease.detach()
        await (await lock.adopt(handle)).release()
    denied = {str_of(entry["object"]) for entry in await admin.acl_log()}
    # The driver asks for `client|setinfo` and lives without; Redis 6.2 knows no subcommands here.
    assert denied - {"client|setinfo", "client"} <= without
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [warning.partition(" (")[0] for warning in warnings] == (
        ["wakeup: keyspace serves this session"] if without else []
    )


def str_of(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
