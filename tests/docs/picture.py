"""The pictures of the packages, drawn from their imports: `python -m tests.docs.picture` draws them again."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "aiolocks"
ASSETS = ROOT / "docs/assets"

Parts = dict[str, tuple[str, str]]
"""The name and a note for each part, which is a file or a folder."""

PARTS: Parts = {
    "cli": ("aiolocks.cli", "the commands"),
    "contrib": ("aiolocks.contrib", "frameworks, databases, metrics"),
    "sync": ("aiolocks.sync", "the locks for threads"),
    "testing": ("aiolocks.testing", "a private server, pytest"),
    "kinds": ("aiolocks.kinds", "one family of locks in each file"),
    "inspect": ("aiolocks.inspect", "locks and waiters, deadlocks"),
    "lock": ("aiolocks.lock", "sessions, waiting, leases: no Redis"),
    "transport": ("aiolocks.transport", "connections and commands, redis-py"),
    "lua": ("aiolocks/lua", "a file a family, a section a step"),
    "errors": ("aiolocks.errors", "one tree of errors"),
}
LOCK: Parts = {
    "acquirable": ("acquirable", "what all kinds offer"),
    "session": ("session", "builds the parts"),
    "renewal": ("renewal", "one timer renews all leases"),
    "waiter": ("waiter", "one wait, one try"),
    "lease": ("lease", "one lock in one session, from the wish to the end"),
    "queue": ("queue", "those here who want one name"),
    "wakeups": ("wakeups", "the bells of a session"),
    "engine": ("engine", "loop, clock, settings, send"),
    "options": ("options", "arguments and their checks"),
    "events": ("events", "what listeners are told"),
}
TRANSPORT: Parts = {
    "opening": ("opening", "from a client to its transport"),
    "steps": ("steps", "families, steps, what scripts are sent"),
    "cluster": ("cluster", "slots, their nodes, redirects"),
    "quorum": ("quorum", "masters, operations, majorities"),
    "serial": ("serial", "one request at a time"),
    "connection": ("connection", "one connection, its end, the next"),
    "hearing": ("hearing", "how bells are heard"),
    "driver": ("driver", "what is taken from redis-py"),
    "request": ("request", "scripts, requests, undo"),
    "faults": ("faults", "the driver's errors become ours"),
}
PICTURES = {
    "architecture.svg": ("The packages of aiolocks, and which imports which", PACKAGE, PARTS),
    "lock.svg": ("The main files of aiolocks/lock", PACKAGE / "lock", LOCK),
    "transport.svg": ("The main parts of the transport", PACKAGE / "transport", TRANSPORT),
}
COLUMNS: dict[str, float] = {
    "acquirable": 2,
    "session": 0,
    "renewal": 1,
    "waiter": 2,
    "lease": 1.5,
    "queue": 1.5,
    "engine": 1.5,
    "wakeups": 0,
    "options": 1,
    "events": 2,
    "opening": 1.5,
    "cluster": 0,
    "serial": 1,
    "connection": 0.5,
    "steps": 2,
    "hearing": 0.5,
    "quorum": 2,
    "driver": 0.5,
    "request": 1,
    "faults": 1,
}
"""Where parts stand so that no line crosses a part; the others are centred."""
_WIDTH, _HEIGHT, _GAP, _RISE = 230, 62, 20, 56
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222}.name{font-weight:600}.note{font-size:11px;fill:#555}"
    "rect{fill:#eef3fb;stroke:#3b6fb6}line{stroke:#777;stroke-width:1.5}path{fill:#777}"
    "@media(prefers-color-scheme:dark){text{fill:#eee}.note{fill:#bbb}rect{fill:#22303f;stroke:#7aa7e0}"
    "line{stroke:#aaa}path{fill:#aaa}}"
)


def imports(folder: Path, parts: Parts) -> dict[str, set[str]]:
    """The parts that each part imports: packages also for annotations, files at run time."""
    found: dict[str, set[str]] = {part: set() for part in parts}
    for path in folder.rglob("*.py"):
        place = path.relative_to(folder).with_suffix("").parts
        if place[0] in found:
            for target in _imported(
                ast.parse(path.read_text("utf-8")), place[:-1], annotations=folder == PACKAGE
            ):
                if target in found and target != place[0]:
                    found[place[0]].add(target)
    if "lua" in found:
        found["transport"].add("lua")  # which reads the files
    return found


def _imported(tree: ast.AST, package: tuple[str, ...], *, annotations: bool) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            continue  # no expression imports
        if not annotations and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and 0 < node.level <= len(package) + 1:
            whole = (*package[: len(package) + 1 - node.level], *(node.module or "").split("."))
            parts = tuple(part for part in whole if part)
            yield from parts[:1] or (alias.name for alias in node.names)
        yield from _imported(node, package, annotations=annotations)


def arrows(folder: Path, parts: Parts) -> list[tuple[str, str]]:
    """Those imports that do not follow from others: A to C is left out where A leads to B and B to C."""
    found = imports(folder, parts)

    def reached(part: str) -> set[str]:
        return found[part].union(*(reached(one) for one in found[part]))

    return [
        (one, other)
        for one in parts
        for other in parts
        if other in found[one] and not any(other in reached(step) for step in found[one] - {other})
    ]


def rows(lines: list[tuple[str, str]], parts: Parts) -> list[list[str]]:
    """The parts by the longest way down to a part that imports none; the highest row first."""
    lead = {one: [to for at, to in lines if at == one] for one in parts}

    def depth(part: str) -> int:
        return 1 + max(map(depth, lead[part]), default=-1)

    depths = {part: depth(part) for part in parts}
    return [
        [part for part in parts if depths[part] == level] for level in range(max(depths.values()), -1, -1)
    ]


def drawing(title: str, folder: Path, parts: Parts) -> str:
    """The picture, as SVG."""
    imported = arrows(folder, parts)
    layers = rows(imported, parts)
    columns = max([*map(len, layers), *(1 + int(COLUMNS.get(part, 0)) for part in parts)])
    across = columns * (_WIDTH + _GAP) - _GAP + 4
    down = len(layers) * (_HEIGHT + _RISE) - _RISE + 4
    corners = {
        part: (
            2 + COLUMNS.get(part, (columns - len(row)) / 2 + place) * (_WIDTH + _GAP),
            2 + level * (_HEIGHT + _RISE),
        )
        for level, row in enumerate(layers)
        for place, part in enumerate(row)
    }
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across} {down}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
    ]
    for one, other in imported:
        (x1, y1), (x2, y2) = corners[one], corners[other]
        begin, end, foot = x1 + _WIDTH / 2, x2 + _WIDTH / 2, y2
        lines.append(
            f'<line x1="{begin:g}" y1="{y1 + _HEIGHT:g}" x2="{end:g}" y2="{foot - 8:g}"/>'
            f'<path d="M{end:g} {foot:g}l-5 -9h10z"/>'
        )
    for part, (name, note) in parts.items():
        x, y = corners[part]
        lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>'
            f'<text class="name" x="{x + 12:g}" y="{y + 26:g}">{escape(name)}</text>'
            f'<text class="note" x="{x + 12:g}" y="{y + 46:g}">{escape(note)}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    for file, picture in PICTURES.items():
        (ASSETS / file).write_text(drawing(*picture), encoding="utf-8")
