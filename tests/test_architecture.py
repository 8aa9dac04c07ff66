"""docs/architecture.md and its picture: drawn from the code as it is, readable by itself, and true in every name."""

from __future__ import annotations

import re
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tools import architecture
from tools.architecture import BESIDE, BOX, GAP, HEIGHT, MAP, MOST_LINES, WRAP, arrows, boxes, draw, purpose, reduced
from tools.floors import DOORS, FLOORS, ROOT, read_all

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SVG = "{http://www.w3.org/2000/svg}"


def test_the_map_is_that_of_the_code() -> None:
    assert MAP.read_text(encoding="utf-8") == draw(read_all()), "docs/architecture.svg is stale: `make map` draws it"


def test_a_changed_house_changes_the_map_and_a_longer_file_does_not() -> None:
    texts = read_all()
    now = draw(texts)

    def with_line(module: str, line: str) -> str:
        return draw(texts | {module: f"{texts[module]}\n{line}\n"})

    assert with_line("fedpriv.data.types", "MORE = 1") == now
    assert with_line("fedpriv.runs.sweep", "import fedpriv.data.types") == now  # an arrow that follows from others
    assert with_line("fedpriv.report.words", "import fedpriv.training.models") != now  # one that does not
    assert draw(texts | {"fedpriv.data": '"""Other words."""'}) != now
    assert draw(texts | {f"fedpriv.data.new{number}": "" for number in range(9)}) != now


def test_the_command_writes_what_is_committed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(architecture, "MAP", tmp_path / "map.svg")
    monkeypatch.setattr(architecture, "ROOT", tmp_path)
    assert architecture.main() == 0
    assert (tmp_path / "map.svg").read_bytes() == MAP.read_bytes()


def test_arrows_that_follow_are_left_out_and_no_others() -> None:
    graph = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": {"d"}}
    assert reduced(graph) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": {"d"}}
    whole = arrows(read_all())
    few = reduced(whole)

    def reached(graph: dict[str, set[str]], start: str) -> set[str]:
        return graph[start].union(*(reached(graph, end) for end in graph[start]))

    assert {start: reached(few, start) for start in few} == {start: reached(whole, start) for start in whole}
    assert sum(map(len, few.values())) < sum(map(len, whole.values())) / 2


def test_the_picture_is_plain_xml_that_needs_nothing_from_elsewhere() -> None:
    text = MAP.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    kinds = {"svg", "title", "desc", "style", "defs", "marker", "path", "rect", "text"}
    assert {element.tag for element in root.iter()} == {SVG + kind for kind in kinds}
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "") and "@import" not in text
    assert not re.findall(r"url\((?!#tip\))", text)
    assert {name for element in root.iter() for name in element.attrib if name.startswith("on")} == set()
    assert root.find(f"{SVG}title").text and root.find(f"{SVG}desc").text  # type: ignore[union-attr]


def test_every_box_is_in_the_picture_with_all_its_words_and_none_covers_another() -> None:
    root, texts, placed = ElementTree.parse(MAP).getroot(), read_all(), boxes()
    shown = {element.text for element in root.iter(f"{SVG}text")}
    assert set(placed) == {*FLOORS, *BESIDE} and len(set(placed.values())) == len(placed)
    assert {f"{name}/" for name in placed} <= shown
    assert all(any(door in (words or "").split(" · ") for words in shown) for door in DOORS)
    for room in FLOORS:
        lines = textwrap.wrap(purpose(room, texts).replace("`", ""), WRAP)
        assert set(lines) <= shown and len(lines) <= MOST_LINES, room
    width, height = int(root.attrib["width"]), int(root.attrib["height"])
    assert all(box.x + BOX < width and box.y + HEIGHT < height for box in placed.values())
    assert len({placed[room].row + FLOORS[room] for room in FLOORS}) == 1


def test_no_arrow_crosses_a_box() -> None:
    """Curves stay between two rows, so the straight parts are what can meet a box."""
    placed, parts = boxes(), 0
    for path in architecture.paths(reduced(arrows(read_all())), placed):
        start = re.match(r"M(\d+),(\d+)", path)
        assert start
        x, y = int(start[1]), int(start[2])
        for kind, numbers in re.findall(r"([CVH])([\d, ]+)", path):
            values = [int(number) for number in re.findall(r"\d+", numbers)]
            to_x = x if kind == "V" else values[-2:][0]
            to_y = y if kind == "H" else values[-1]
            (left, right), (high, low) = sorted((x, to_x)), sorted((y, to_y))
            if kind == "C":
                assert low - high <= GAP, path
            else:
                parts += 1
                hit = [
                    name
                    for name, box in placed.items()
                    if left < box.x + BOX and right > box.x and high < box.y + HEIGHT and low > box.y
                ]
                assert hit == [], path
            x, y = to_x, to_y
    assert parts > 10


# --- the page --------------------------------------------------------------------------------------------------


def test_every_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`([\w.]+/[\w./]*)`", PAGE)) | set(re.findall(r"\]\(([^)#:]+)\)", PAGE))
    assert len(named) > 60
    real = [name for name in sorted(named) if "/NAME." not in name]
    missing = [name for name in real if not (ROOT / name).exists() and not (MAP.parent / name).exists()]
    assert missing == []
    assert {name for name in named if "/NAME." in name} == {
        "strategies/NAME.py",
        "clients/NAME.py",
        "conf/strategy/NAME.yaml",
    }


def test_every_name_in_the_code_that_the_page_relies_on_is_there() -> None:
    for file, name in (
        ("fedpriv/client/one_path.py", "def answer("),
        ("fedpriv/client/method.py", "def release("),
        ("fedpriv/client/method.py", "def charges("),
        ("fedpriv/client/method.py", "def worst_case_pairs("),
        ("fedpriv/server/strategy.py", "def train_options("),
        ("fedpriv/server/strategy.py", "def aggregate("),
        ("fedpriv/server/strategy.py", "def figures("),
        ("fedpriv/privacy/events.py", "MECHANISMS: "),
        ("fedpriv/attacks/experiment.py", "ATTACKS: "),
        ("fedpriv/report/plots.py", "def draw_run("),
    ):
        words = re.search(r"\w+(?=[(:])", name.removeprefix("def "))
        assert words and f"`{words[0]}`" in PAGE and name in (ROOT / file).read_text(encoding="utf-8"), (file, name)


def test_the_table_of_rooms_says_what_the_rooms_say() -> None:
    texts = read_all()
    rows = dict(re.findall(r"^\| `fedpriv/(\w+)/` \| (.*) \|$", PAGE, re.MULTILINE))
    assert rows == {room: purpose(room, texts) for room in FLOORS}
    assert [FLOORS[room] for room in rows] == sorted(FLOORS.values(), reverse=True)
