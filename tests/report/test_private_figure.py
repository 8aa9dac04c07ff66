"""The table and the picture at the beginning of README.md are those of the committed runs and of the leaderboard."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.private_figure import ROOT, Row, draw, interval, measured, ranked, rows
from tools.private_runs import EPSILONS, FIGURES, read

README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("begins", "row"),
    [
        ("`fedonce` with a stroke map", measured("strokes")),
        ("`fedonce` without it", measured("upright")),
        ("`fedonce`, nothing of digits", measured("nothing of digits")),
        ("there, the best without public features", ranked(None)),
        ("there, the best idea of the five papers", ranked("paper")),
    ],
)
def test_the_table_is_that_of_the_measured_numbers(begins: str, row: Row) -> None:
    (line,) = [line for line in README.splitlines() if line.startswith(f"| {begins}")]
    shown = [(float(mean), float(half)) for mean, half in re.findall(r"([\d.]+) ± ([\d.]+)", line)]
    assert shown == [(pytest.approx(mean, abs=0.051), pytest.approx(half, abs=0.051)) for mean, half in row.values()]


def test_every_row_has_its_seeds_and_kept_its_promise() -> None:
    lines = read(FIGURES)
    for row in {line["row"] for line in lines}:
        for epsilon in EPSILONS:
            mine = [line for line in lines if (line["row"], line["epsilon"]) == (row, epsilon)]
            assert len({line["seed"] for line in mine}) == len(mine) == 16
            assert all(line["verified"] <= epsilon * (1 + 1e-9) for line in mine)
    mean, _ = interval([line["accuracy"] for line in lines if (line["row"], line["epsilon"]) == ("digits", 8)])
    assert f"all of a client: {mean:.0f} % at epsilon 8" in README


def test_an_interval_is_students() -> None:
    mean, half = interval([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5 and half == pytest.approx(3.182446 * (5 / 3) ** 0.5 / 2, rel=1e-6)


def test_the_picture_is_drawn_from_the_results(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        draw(rows(), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    points = re.findall(r"[ML] [\d.]+ [\d.]+", (tmp_path / "a.svg").read_text())
    committed = re.findall(r"[ML] [\d.]+ [\d.]+", (ROOT / "docs" / "figures" / "private_mnist.svg").read_text())
    assert points == committed, "the committed picture is stale: python -m tools.private_figure draws it"
