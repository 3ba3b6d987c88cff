"""As much of SVG as the plots need. Colours follow the reader's light or dark scheme."""

from __future__ import annotations

from html import escape

COLOURS = ("#3b6fb6", "#2a9d8f", "#8e6bbf", "#d1803a", "#b5485d", "#7a7f87", "#a39a2f", "#5aa9d6")
OURS = "#2a9d8f"
FLOOR = "#7a7f87"
PEER = "#d1803a"

_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.title{font-weight:600;font-size:14px}.line{stroke:#9994}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)


class Drawing:
    """One picture."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._width = width
        self._height = height
        self._title = title
        self._parts: list[str] = []
        self.text(0, 14, title, kind="title")

    def text(self, x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> None:
        """Writes, from the given base line."""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'
        )

    def bar(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """Fills a rectangle."""
        self._parts.append(
            f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" fill="{colour}"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A thin line of a grid or an axis."""
        self._parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="line"/>')

    def curve(self, points: list[tuple[float, float]], colour: str) -> None:
        """Joins points."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')

    def __str__(self) -> str:
        body = "\n".join(self._parts)
        size = f"{self._width} {self._height}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img">\n'
            f"<title>{escape(self._title)}</title>\n<style>{_STYLE}</style>\n{body}\n</svg>\n"
        )


def colour_of(contender: str) -> str:
    """By what it is."""
    if contender.startswith("floor"):
        return FLOOR
    return OURS if contender.startswith("aiolocks") else PEER
