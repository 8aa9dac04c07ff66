"""The table and the picture at the beginning of README.md are those of the committed runs and of the leaderboard."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from picture_sets import write_mnist

from fedpriv.data import stroke_map
from tools import private_runs
from tools.private_figure import ROOT, Row, draw, interval, measured, ranked, rows
from tools.private_runs import EPSILONS, FIGURES, read

README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("begins", "row"),
    [
        ("`fedonce`, stroke map, upright images |", measured("strokes")),
        ("`fedonce`, upright images, no stroke map |", measured("upright")),
        ("`fedonce`, no knowledge of digits", measured("nothing of digits")),
        ("best without public features, leaderboard |", ranked(None)),
        ("best idea of the five papers, leaderboard |", ranked("paper")),
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
    assert f"experiment=private_digits hydra.run.dir=outputs/private   # {mean:.0f} % at epsilon 8" in README


FEATURES = (ROOT / "docs" / "results" / "features.md").read_text()
#: A line of the table of choices -> its variants.
CHANGED = {
    "nothing": ["as it is"],
    "tau 24; 96": ["tau 24", "tau 96"],
    "rho 0.25; 1": ["rho 0.25", "rho 1.0"],
    "exponent 0; 1": ["exponent 0.0", "exponent 1.0"],
    "ridge 0.1; 1": ["RIDGE 0.1", "RIDGE 1.0"],
    "size down 4.5/28; 6.5/28": ["TALL 4.5/28", "TALL 6.5/28"],
    "size across 3/28; 5/28": ["WIDE 3.0/28", "WIDE 5.0/28"],
    "strokes, at most 2; 4": ["MOST_STROKES 2", "MOST_STROKES 4"],
    "pen 0.7; 1.4 times as wide": ["PEN 0.7", "PEN 1.4"],
    "writings half; twice as different": ["writing 0.5", "writing 2"],
}


def test_the_table_of_choices_is_that_of_the_measured_numbers() -> None:
    lines = private_runs.read(private_runs.CHOICES)
    assert (
        {line["row"] for line in lines}
        == set(private_runs.VARIANTS)
        == {one for row in CHANGED.values() for one in row}
    )

    def of(row: str, epsilon: float) -> list[float]:
        found = {line["seed"]: line["accuracy"] for line in lines if (line["row"], line["epsilon"]) == (row, epsilon)}
        assert sorted(found) == [100, 101, 102, 103]
        return [found[seed] for seed in sorted(found)]

    for begins, variants in CHANGED.items():
        (line,) = [line for line in FEATURES.splitlines() if line.startswith(f"| {begins} |")]
        shown = [(float(mean), float(half)) for mean, half in re.findall(r"([\d.]+) ± ([\d.]+)", line)]
        known = [interval(of(row, epsilon)) for epsilon in private_runs.CHOICE_EPSILONS for row in variants]
        assert shown == [(pytest.approx(mean, abs=0.051), pytest.approx(half, abs=0.051)) for mean, half in known]
    apart = {}  # the pairs whose difference is not within its interval
    for row in private_runs.VARIANTS:
        for epsilon in private_runs.CHOICE_EPSILONS:
            pairs = zip(of(row, epsilon), of("as it is", epsilon), strict=True)
            mean, half = interval([one - other for one, other in pairs])
            if abs(mean) > half:
                apart[row, epsilon] = (mean, half)
    said = {"tau 24": (8, "-0.43 ± 0.14"), "exponent 0.0": (8, "-0.27 ± 0.19"), "rho 1.0": (8, "0.04 ± 0.02")}
    said |= {"tau 96": (1, "-3.8 ± 0.5"), "PEN 1.4": (1, "-2.7 ± 2.5")}
    assert set(apart) == {(row, epsilon) for row, (epsilon, _) in said.items()}
    for row, (epsilon, words) in said.items():
        digits = len(words.partition(" ")[0].partition(".")[2])
        assert " ± ".join(f"{number:.{digits}f}" for number in apart[row, epsilon]) == words and words in FEATURES


def test_the_page_of_methods_and_features_have_the_digits_measured() -> None:
    eight, four, two, one = (measured("digits")[epsilon] for epsilon in (8, 4, 2, 1))
    assert "has " + ", ".join(f"{mean:.1f} ± {half:.1f}" for mean, half in (one, two, four)) in FEATURES
    row = f"{eight[0]:.1f} ± {eight[1]:.1f}; at epsilon 4, 2, 1: {four[0]:.1f}, {two[0]:.1f}, {one[0]:.1f}"
    assert row in (ROOT / "docs" / "fedonce.md").read_text()


@pytest.mark.parametrize("what", ["figures", "choices"])
def test_the_runs_are_made_once_each(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of docs/results/features.md, on 48 small pictures."""
    write_mnist(tmp_path / "data", 48, 16, (8, 8))
    options = ("dataset=mnist", "dataset.root={data}", "model=linear", "num_rounds=1", "num_clients=4")
    small = (*options, "clients_per_round=4", "local.batch_size=4", f"dataset.cache={tmp_path / 'cache'}")
    small += ("strategy=fedldp", "dataset.auxiliary=0", "partition=iid")
    variants = {name: private_runs.VARIANTS[name] for name in ("as it is", "RIDGE 0.1")}
    for name, value in {
        "MNIST": small,
        "ROWS": {"upright": small},
        "VARIANTS": variants,
        "HELD_OUT": 20,
        "EPSILONS": (8,),
        "CHOICE_EPSILONS": (8,),
        "FIGURES": tmp_path / "figures.jsonl",
        "CHOICES": tmp_path / "choices.jsonl",
    }.items():
        monkeypatch.setattr(private_runs, name, value)
    before = stroke_map.RIDGE
    for _ in range(2):
        private_runs.main([what, str(tmp_path / "data"), "1"])
    rows = private_runs.read(tmp_path / f"{what}.jsonl")
    assert [row["row"] for row in rows] == (["upright"] if what == "figures" else list(variants))
    assert all(row["verified"] <= 8 and row["seed"] == 100 for row in rows) and before == stroke_map.RIDGE


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
