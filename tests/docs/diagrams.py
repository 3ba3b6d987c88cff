"""Draws the pictures of docs/assets/diagrams from the text beside each: `python -m tests.docs.diagrams`.

A text begins with the sort of the picture and its title. The lines that follow are, for each sort:

- sequence: `A = process A` is a column; `A -> S: try` an arrow from one to another; `A: holds` a state of a
  column. Time goes down.
- timeline: `span 0 60` is the time from left to right; `row name` a row; `bar row 0 30 on text` a bar of one
  of the looks of `LOOKS`; `mark row 10 text` a moment; `line 50 text` a moment of all rows;
  `arrow row 0 row 1` a message.
- table: `columns a | b`, then `name: cell | cell`; a cell that begins with + is a yes, one with - a no.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs/assets/diagrams"

LOOKS = {"on", "wait", "off", "bad", "free"}
"""Held, waiting, away, lost or refused, free."""

_WIDTH = 540
"""Narrow, so that the text can still be read on a phone."""
_LETTER, _BOLD_LETTER = 6.6, 7.8
_STYLE = (
    ".sheet{fill:#fff;stroke:#d5d9e0}text{font:13px system-ui,sans-serif;fill:#1d2530}.head{font-weight:600}"
    ".dim{fill:#5a6472}.on{fill:#cfe2fb;stroke:#2f64a8}"
    ".wait{fill:#fff3d6;stroke:#a87613;stroke-dasharray:5 3}"
    ".off{fill:#e6e8ec;stroke:#8a93a0}.bad{fill:#fbdada;stroke:#b23b3b}.free{fill:#dff3e1;stroke:#3c8a48}"
    ".rail{stroke:#b9c0ca}.arrow{stroke:#46505e;stroke-width:1.5}.tip{fill:#46505e}"
    ".line{stroke:#b23b3b;stroke-dasharray:2 3}"
    "@media(prefers-color-scheme:dark){.sheet{fill:#1b1f27;stroke:#3a4150}text{fill:#e8ebf0}.dim{fill:#a9b2c0}"
    ".on{fill:#1f3b5f;stroke:#7fb0ee}.wait{fill:#463612;stroke:#e0b04a}.off{fill:#2d333d;stroke:#7c8694}"
    ".bad{fill:#562525;stroke:#ee8d8d}.free{fill:#1d4024;stroke:#7fce8b}.rail{stroke:#475061}"
    ".arrow{stroke:#c3cbd8}.tip{fill:#c3cbd8}.line{stroke:#ee8d8d}}"
)

Shapes = Iterator[str]
Lines = list[str]


def drawing(source: str) -> str:
    """The picture of a text, as SVG.

    Raises:
        ValueError: A line of the text is none of those of its sort.
    """
    first, *lines = [line.strip() for line in source.splitlines() if line.strip()]
    sort, _, title = first.partition(" ")
    sorts: dict[str, Callable[[Lines], tuple[int, list[str]]]] = {
        "sequence": _sequence,
        "timeline": _timeline,
        "table": _table,
    }
    height, shapes = sorts[sort](lines)
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="sheet" x=".5" y=".5" width="{_WIDTH - 1}" height="{height - 1}" rx="6"/>',
            *shapes,
            "</svg>",
            "",
        ]
    )


def _text(x: float, y: float, text: str, look: str = "", *, middle: bool = True) -> str:
    anchor = ' text-anchor="middle"' if middle else ""
    if middle:  # inside of the sheet
        half = len(text) * _LETTER / 2 + 4
        x = min(max(x, half), _WIDTH - half)
    return f'<text x="{x:g}" y="{y:g}" class="{look}"{anchor}>{escape(text)}</text>'


def _box(x: float, y: float, width: float, text: str, look: str) -> Shapes:
    yield f'<rect class="{look}" x="{x:g}" y="{y:g}" width="{width:g}" height="22" rx="4"/>'
    if text:
        yield _text(x + width / 2, y + 15.5, text)


def _arrow(x1: float, y1: float, x2: float, y2: float) -> Shapes:
    """Its tip is at the end."""
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    across, down = 8 * (x2 - x1) / length, 8 * (y2 - y1) / length
    x, y = x2 - across, y2 - down  # the foot of the tip
    yield f'<line class="arrow" x1="{x1:g}" y1="{y1:g}" x2="{x:.4g}" y2="{y:.4g}"/>'
    corners = (x - down / 2, y + across / 2), (x + down / 2, y - across / 2), (x2, y2)
    points = " ".join(f"{one:.4g},{other:.4g}" for one, other in corners)
    yield f'<polygon class="tip" points="{points}"/>'


def _sequence(lines: Lines) -> tuple[int, list[str]]:
    names = dict(line.split(" = ") for line in lines if " = " in line)
    steps = [line for line in lines if " = " not in line]
    apart = (_WIDTH - 120) / (len(names) - 1)
    column = {name: 60 + place * apart for place, name in enumerate(names)}
    shapes: list[str] = []
    y = 44
    for step in steps:
        columns, _, text = step.partition(": ")
        if "->" in columns:
            one, other = columns.split(" -> ")
            x1, x2 = column[one], column[other]
            shapes.append(_text((x1 + x2) / 2, y + 14, text))
            shapes += _arrow(x1, y + 21, x2, y + 21)
            y += 30
        else:
            width = len(text) * _LETTER + 16
            x = min(max(column[columns] - width / 2, 6), _WIDTH - 6 - width)
            shapes += _box(x, y + 6, width, text, "on" if "hold" in text else "off")
            y += 34
    rails = [f'<line class="rail" x1="{x:g}" y1="34" x2="{x:g}" y2="{y + 6}"/>' for x in column.values()]
    heads = [_text(column[name], 24, text, "head") for name, text in names.items()]
    return y + 16, [*rails, *heads, *shapes]


def _timeline(lines: Lines) -> tuple[int, list[str]]:
    rows: dict[str, float] = {}
    begin, end = 0.0, 100.0
    words = [line.split(maxsplit=5) for line in lines]
    above = 16 + 18 * sum(word[0] == "line" for word in words)
    marked = {word[1] for word in words if word[0] == "mark"}
    y = float(above)
    for word in words:
        if word[0] == "span":
            begin, end = float(word[1]), float(word[2])
        elif word[0] == "row":
            y += 20 if word[1] in marked else 2
            rows[word[1]] = y
            y += 32
    height = int(y + 4)
    left = 28 + max(map(len, rows)) * _BOLD_LETTER

    def at(moment: str) -> float:
        return left + (float(moment) - begin) / (end - begin) * (_WIDTH - left - 14)

    shapes: list[str] = []
    arrows: list[str] = []
    for name, y in rows.items():
        shapes.append(_text(12, y + 15.5, name.replace("_", " "), "head", middle=False))
        shapes.append(f'<line class="rail" x1="{left:g}" y1="{y + 22}" x2="{_WIDTH - 14}" y2="{y + 22}"/>')
    drawn = 0
    for word in words:
        match word:
            case ["bar", row, start, stop, look, *text] if look in LOOKS:
                shapes += _box(at(start), rows[row], at(stop) - at(start), " ".join(text), look)
            case ["mark", row, moment, *text]:
                x, y = at(moment), rows[row]
                shapes.append(f'<line class="arrow" x1="{x:g}" y1="{y - 4}" x2="{x:g}" y2="{y + 22}"/>')
                shapes.append(_text(x, y - 8, " ".join(text), "dim"))
            case ["line", moment, *text]:
                x, y = at(moment), 20 + 18 * drawn
                drawn += 1
                shapes.append(f'<line class="line" x1="{x:g}" y1="{y + 4}" x2="{x:g}" y2="{height - 6}"/>')
                shapes.append(_text(x, y, " ".join(text), "dim"))
            case ["arrow", one, start, other, stop]:
                down = rows[other] > rows[one]
                y1, y2 = (rows[one] + 22, rows[other]) if down else (rows[one], rows[other] + 22)
                arrows += _arrow(at(start), y1, at(stop), y2)
            case ["span" | "row", *_]:
                pass
            case _:
                raise ValueError(f"not a line of a timeline: {' '.join(word)}")
    return height, [*shapes, *arrows]


def _table(lines: Lines) -> tuple[int, list[str]]:
    columns = lines[0].removeprefix("columns ").split(" | ")
    left = max(len(line.partition(":")[0]) for line in lines[1:]) * _BOLD_LETTER + 24
    width = (_WIDTH - left - 8) / len(columns)
    shapes = [_text(left + width * (place + 0.5), 24, name, "head") for place, name in enumerate(columns)]
    y = 34
    for line in lines[1:]:
        name, _, cells = line.partition(": ")
        shapes.append(_text(12, y + 17.5, name, "head", middle=False))
        for place, cell in enumerate(cells.split(" | ")):
            look = {"+": "free", "-": "bad"}[cell[0]]
            sign = {"+": "✓", "-": "✗"}[cell[0]]
            shapes += _box(left + width * place, y + 2, width - 6, f"{sign} {cell[1:].strip()}", look)
        y += 30
    return y + 10, shapes


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.txt")):
        path.with_suffix(".svg").write_text(drawing(path.read_text("utf-8")), encoding="utf-8")
