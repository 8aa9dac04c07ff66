"""`python -m tools.architecture`, or `make map`: draws the rooms (packages) and floors (layers) from the imports.

Writes docs/architecture.svg, deterministically. An arrow stands for imports; one implied by others is left out
(transitive reduction), and the size of a room is rounded, so only a change of structure changes the map.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

from tools.floors import DOORS, FLOORS, ROOT, module_graph, read_all, room_of

MAP = ROOT / "docs" / "architecture.svg"
#: Folders with the two halves of every method -> the room of their base classes.
BESIDE = {"strategies": "server", "clients": "client"}
#: Columns from the left, chosen so that arrows cross few boxes. A room not listed takes the first free one.
COLUMNS = {
    "strategies": 0,
    "report": 0,
    "data": 0,
    "config": 0,
    "studies": 1,
    "attacks": 1,
    "runs": 1,
    "server": 1,
    "training": 1,
    "common": 1,
    "certificates": 2,
    "engines": 2,
    "deployment": 2,
    "client": 2,
    "privacy": 2,
    "mechanisms": 2,
    "clients": 3,
}
#: Numbers of files are rounded to the nearest of these.
SIZES = (1, 2, 5, 10, 15, 20, 30, 40, 50, 75, 100)

BOX, HEIGHT, GUTTER, GAP = 276, 98, 56, 44
WRAP, MOST_LINES = 36, 4  # of the text in a box
LEFT, TOP, EDGE, MARGIN = 96, 186, 14, 28
COLUMN, ROW = BOX + GUTTER, HEIGHT + GAP
INK, SOFT, LINE, PAPER, BAND, DOOR = "#1d2733", "#5a6673", "#4a6fa5", "#ffffff", "#eef2f7", "#fff6e0"
STYLE = f"""
text {{ font-family: system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; font-size: 13px; fill: {INK}; }}
.title {{ font-size: 22px; font-weight: 600; }} .name {{ font-size: 16px; font-weight: 600; }}
.soft {{ fill: {SOFT}; }} .end {{ text-anchor: end; }} .middle {{ text-anchor: middle; }}
.arrow {{ fill: none; stroke: {LINE}; stroke-width: 1.6; marker-end: url(#tip); }}
.room {{ fill: {PAPER}; stroke: {INK}; stroke-width: 1.2; }} .door {{ fill: {DOOR}; stroke: {SOFT}; }}
.half {{ fill: {DOOR}; stroke: {INK}; stroke-width: 1.2; stroke-dasharray: 5 3; }}
"""


def arrows(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Room or folder of methods -> those that it imports. Doors, which import rooms of any floor, are left out."""
    found: dict[str, set[str]] = {name: set() for name in (*FLOORS, *BESIDE)}
    for module, others in module_graph(texts).items():
        if (start := place_of(module)) is not None:
            ends = {place_of(other) for other in others} - {start}
            found[start] |= {end for end in ends if end is not None}
    return found


def place_of(module: str) -> str | None:
    """A module's room, or its folder of methods; None for a door."""
    top = module.partition(".")[0]
    return top if top in BESIDE else room_of(module)


def floor_of(name: str) -> int:
    """A room's floor; a folder of methods is on that of its base classes."""
    return FLOORS[BESIDE[name]] if name in BESIDE else FLOORS[name]


def reduced(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The transitive reduction. The graph has no cycles (tests/test_imports.py)."""

    def reached(start: str) -> set[str]:
        return graph[start].union(*(reached(end) for end in graph[start]))

    return {start: ends - set().union(*(reached(end) for end in ends)) for start, ends in graph.items()}


def purpose(room: str, texts: Mapping[str, str]) -> str:
    """The first sentence of a room's own docstring."""
    words = ast.get_docstring(ast.parse(texts[f"fedpriv.{room}"])) or ""
    return " ".join(words.split("\n\n")[0].split()).partition(". ")[0].removesuffix(".") + "."


def about(count: int) -> int:
    return min(SIZES, key=lambda size: (abs(size - count), size))


# --- layout --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    column: int
    row: int  # from the top

    @property
    def x(self) -> int:
        return LEFT + COLUMN * self.column

    @property
    def y(self) -> int:
        return TOP + ROW * self.row


def boxes() -> dict[str, Box]:
    highest, taken, found = max(FLOORS.values()), set[Box](), {}
    places = {name: highest - floor_of(name) for name in (*FLOORS, *BESIDE)}
    for name, row in sorted(places.items(), key=lambda item: (item[0] not in COLUMNS, item)):
        free = (Box(column, row) for column in (COLUMNS.get(name, 0), *range(len(places))))
        found[name] = next(box for box in free if box not in taken)
        taken.add(found[name])
    return found


def paths(graph: Mapping[str, set[str]], placed: Mapping[str, Box]) -> Iterator[str]:
    """Every arrow as an SVG path, from the lower edge of its box to the upper edge of the other one."""
    edges = sorted((start, end) for start, ends in graph.items() for end in ends)
    level = [(start, end) for start, end in edges if placed[start].row == placed[end].row]
    falling = [edge for edge in edges if edge not in level]
    out, into = defaultdict(list), defaultdict(list)
    for start, end in falling:
        out[start].append((placed[end].column, -placed[end].row, end))
        into[end].append((placed[start].column, placed[start].row, start))
    for start, end in level:
        one, other = placed[start], placed[end]
        first, last = (one.x + BOX, other.x - 3) if one.x < other.x else (one.x, other.x + BOX + 3)
        yield f"M{first},{one.y + HEIGHT // 2} H{last}"
    occupied = set(placed.values())
    for start, end in falling:
        one, other = placed[start], placed[end]
        x0 = port(one, sorted(out[start]), (other.column, -other.row, end))
        x1 = port(other, sorted(into[end]), (one.column, one.row, start))
        y0, y1 = one.y + HEIGHT, other.y - 3
        if other.row - one.row == 1:
            yield f"M{x0},{y0} {curve(x0, y0, x1, y1)}"
            continue
        between = range(one.row + 1, other.row)
        if all(Box(other.column, row) not in occupied for row in between):
            lane = x1
        elif all(Box(one.column, row) not in occupied for row in between):
            lane = x0
        else:  # between two columns, on the side of the start
            lane = other.x - GUTTER // 2 if one.column <= other.column else other.x + BOX + GUTTER // 2
        high, low = y0 + GAP, y1 - GAP + 3
        yield f"M{x0},{y0} {curve(x0, y0, lane, high)} V{low} {curve(lane, low, x1, y1)}"


def port(box: Box, ends: list[tuple[int, int, str]], end: tuple[int, int, str]) -> int:
    """x of an arrow's end on its box: arrows at one edge are placed side by side."""
    return box.x + BOX * (ends.index(end) + 1) // (len(ends) + 1)


def curve(x0: int, y0: int, x1: int, y1: int) -> str:
    middle = (y0 + y1) // 2
    return f"V{y1}" if x0 == x1 else f"C{x0},{middle} {x1},{middle} {x1},{y1}"


# --- the picture ---------------------------------------------------------------------------------------------


def draw(texts: Mapping[str, str]) -> str:
    """The whole map as SVG."""
    placed, graph = boxes(), reduced(arrows(texts))
    rows = max(FLOORS.values())
    width = LEFT + COLUMN * (1 + max(box.column for box in placed.values())) - GUTTER + MARGIN
    height = TOP + ROW * rows
    counts: dict[str, int] = defaultdict(int)
    for module in texts:
        if (place := place_of(module)) is not None and module.count(".") > (place in FLOORS):
            counts[place] += 1
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-labelledby="title what">',
        '<title id="title">The rooms and floors of fedpriv</title>',
        f'<desc id="what">{escape(in_words(graph))}</desc>',
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{LINE}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" rx="10" fill="{PAPER}"/>',
        text(MARGIN, 40, "Rooms and floors of fedpriv", "title"),
        text(
            MARGIN,
            64,
            "An arrow means “imports”. Arrows go down only; one that follows from others is not drawn.",
            "soft",
        ),
        *doors(width),
    ]
    for floor in range(1, rows + 1):
        y = TOP + ROW * (rows - floor) - GAP // 4
        lines.append(
            f'<rect x="{EDGE}" y="{y}" width="{width - 2 * EDGE}" height="{HEIGHT + GAP // 2}" rx="8" fill="{BAND}"/>'
        )
        lines.append(text(MARGIN, y + HEIGHT // 2 + 15, f"floor {floor}", "soft"))
    lines += [f'<path class="arrow" d="{path}"/>' for path in paths(graph, placed)]
    for room, box in sorted(placed.items()):
        lines += one_box(room, box, texts, about(counts[room]))
    return "\n".join([*lines, "</svg>", ""])


def one_box(name: str, box: Box, texts: Mapping[str, str], files: int) -> Iterator[str]:
    beside = name in BESIDE
    words = f"One file for each method: its {BESIDE[name]} half." if beside else purpose(name, texts).replace("`", "")
    kind = "half" if beside else "room"
    yield f'<rect class="{kind}" x="{box.x}" y="{box.y}" width="{BOX}" height="{HEIGHT}" rx="7"/>'
    yield text(box.x + 12, box.y + 22, f"{name}/", "name")
    yield text(box.x + BOX - 12, box.y + 22, f"about {files} files", "soft end")
    for number, line in enumerate(textwrap.wrap(words, WRAP)):
        yield text(box.x + 12, box.y + 41 + 16 * number, line)


def doors(width: int) -> Iterator[str]:
    """The files beside the rooms, at the top."""
    yield (
        f'<rect class="door" x="{EDGE}" y="84" width="{width - 2 * EDGE}" height="70" rx="8"/>'
        + text(MARGIN, 108, "Doors", "name")
        + text(
            MARGIN + 56,
            108,
            "`python -m fedpriv`, and the app that Flower loads. No room imports one.",
        )
    )
    names = " · ".join(sorted(DOORS))
    for number, line in enumerate(textwrap.wrap(names, 150)):
        yield text(MARGIN, 134 + 20 * number, line, "soft")


def in_words(graph: Mapping[str, set[str]]) -> str:
    """The arrows in words, as alternative text."""
    order = sorted(graph, key=lambda name: (-floor_of(name), name))
    return " ".join(f"{name} imports {', '.join(sorted(graph[name]))}." for name in order if graph[name])


def text(x: int, y: int, words: str, kind: str = "") -> str:
    marked = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}"{marked}>{escape(words, quote=False)}</text>'


def main() -> int:
    MAP.write_text(draw(read_all()), encoding="utf-8")
    print(MAP.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
