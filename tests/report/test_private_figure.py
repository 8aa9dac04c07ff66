"""The table and the picture at the beginning of README.md are those of the measured numbers beside the picture."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tools.private_figure import FOLDER, draw, interval

ROOT = Path(__file__).resolve().parents[2]
MEASURED = json.loads((FOLDER / "private_mnist.json").read_text())


@pytest.mark.parametrize(
    ("row", "name"),
    [("`fedonce` with a stroke map", "with what is known of strokes"), ("`fedonce` without it", "without")],
)
def test_the_table_is_that_of_the_measured_numbers(row: str, name: str) -> None:
    (line,) = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith(f"| {row}")]
    shown = [(float(mean), float(half)) for mean, half in re.findall(r"([\d.]+) ± ([\d.]+)", line)]
    assert len(shown) == len(MEASURED["epsilon"]) == 4
    for (mean, half), runs in zip(shown, MEASURED[name], strict=True):
        found = interval(runs)
        assert (mean, half) == pytest.approx(found, abs=0.051) or (mean, half) == tuple(map(round, found))


def test_an_interval_is_students() -> None:
    mean, half = interval([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5 and half == pytest.approx(3.182446 * (5 / 3) ** 0.5 / 2, rel=1e-3)


def test_the_picture_is_drawn_anew_alike(tmp_path: Path) -> None:
    known = {"one": MEASURED["without"], "two": MEASURED["with what is known of strokes"]}
    for name in ("a.svg", "b.svg"):
        draw(known, MEASURED["epsilon"], 43.5, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "<svg" in (tmp_path / "a.svg").read_text()
