"""A paper's figures: differences are taken seed by seed, intervals are t-intervals, printed values are beside."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from made_up import PAPER
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from fedpriv.studies import study_plots as plots
from fedpriv.studies.pages import by_question
from fedpriv.studies.papers import Paper, Place
from fedpriv.studies.reproduction import Measured
from fedpriv.studies.results import Board, Leaderboard, RunRecord, read_study

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"

#: row -> seed -> accuracy over rounds, in percent
RUNS = {
    "base": {0: (40.0, 60.0), 1: (30.0, 50.0), 2: (50.0, 70.0)},
    "idea": {0: (41.0, 63.0), 1: (31.0, 54.0), 2: (51.0, 75.0)},
    "guess": {0: (9.0, 10.0), 1: (11.0, 10.0), 2: (10.0, 12.0)},
}


class Made(Measured):
    """What was measured, without the runs."""

    def of(self, place: Place) -> list[RunRecord]:
        return [
            RunRecord(
                name=f"{place[1]}-{seed}", kind="train", options=(), seed=seed, command="",
                summary={"accuracy": {"final": curve[-1] / 100}},
                curve=tuple((10 * (step + 1), value / 100, None) for step, value in enumerate(curve)),
                norms=tuple((step + 1, value) for step, value in enumerate(curve)),
            )
            for seed, curve in self.results.get(place[1], {}).items()  # type: ignore[call-overload]
        ]  # fmt: skip


def paper(runs: Mapping[str, Any] = RUNS, claims: Mapping[str, Any] | None = None, **figure: Any) -> Made:
    spec: dict[str, Any] = json.loads(json.dumps(PAPER))
    spec["tables"] = {
        "t": {
            "title": "T", "source": "s", "dataset": "mnist",
            "rows": {name: {"label": name.capitalize()} for name in runs},
            "columns": {"final": {"label": "accuracy"}},
            "reported": {"base": {"final": 90.0}, "idea": {"final": 97.0}} if claims is None else {},
        }
    }  # fmt: skip
    spec["claims"] = claims or {}
    spec["figures"] = {
        "f": {"kind": "curves", "table": "t", "column": "final", "title": "F", "caption": "Made.", **figure}
    }
    return Made(Paper.model_validate(spec), "small", {}, {}, runs)  # type: ignore[arg-type]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    kept: list[Figure] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: kept.append(figure))
    return kept


def test_a_difference_is_taken_seed_by_seed_and_its_interval_is_students() -> None:
    found = paper(against={"idea": "base"})
    (line,) = plots.lines(found.paper.figures["f"], found)
    (ten, first), (twenty, last) = line.points
    assert (ten, first.mean, first.half_width) == (10, pytest.approx(1), pytest.approx(0, abs=1e-9))
    # differences 3, 4, 5: standard deviation 1, t(2, 0.975) = 4.302653
    assert (twenty, last.mean) == (20, pytest.approx(4))
    assert last.half_width == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    missing = paper({**RUNS, "base": {1: (30.0, 50.0), 2: (50.0, 70.0), 7: (1.0, 1.0)}}, against={"idea": "base"})
    (line,) = plots.lines(missing.paper.figures["f"], missing)
    assert line.points[1][1].n == 2 and line.points[1][1].mean == pytest.approx(4.5)


def test_lines_are_compared_on_the_seeds_that_all_have() -> None:
    """A row with more seeds is not shown with the luck of those that others lack."""
    more = {**RUNS, "base": RUNS["base"] | {7: (90.0, 90.0)}}
    found = paper(more)
    made = {line.label: line.points for line in plots.lines(found.paper.figures["f"], found)}
    alone = {line.label: line.points for line in plots.lines(found.paper.figures["f"], paper())}
    assert made == alone and {cell.n for points in made.values() for _, cell in points} == {len(RUNS["base"])}
    apart = paper({"base": {0: (40.0, 60.0)}, "idea": {1: (50.0, 60.0)}}, claims={})  # none in common
    assert [line.points[0][1].n for line in plots.lines(apart.paper.figures["f"], apart)] == [1, 1]


def test_a_difference_has_all_seeds_of_its_two_rows() -> None:
    """Those of a third row, which has fewer, take none away."""
    runs = {**RUNS, "guess": {0: (10.0, 10.0)}}
    found = paper(runs, claims={}, against={"idea": "base", "guess": "base"})
    counts = {line.label: line.points[0][1].n for line in plots.lines(found.paper.figures["f"], found)}
    assert counts == {"Idea": len(RUNS["base"]), "Guess": 1}


def test_a_round_counts_where_every_seed_has_it() -> None:
    found = paper({"base": {0: (40.0, 60.0, 70.0), 1: (30.0, 50.0)}}, claims={})
    (line,) = plots.lines(found.paper.figures["f"], found)
    assert [x for x, _ in line.points] == [10, 20]


def test_printed_values_stand_at_the_end(drawn: list[Figure], tmp_path: Path) -> None:
    found = paper()
    made = {line.label: line.printed for line in plots.lines(found.paper.figures["f"], found)}
    assert made == {"Base": ((20, 90.0),), "Idea": ((20, 97.0),), "Guess": ()}
    found = paper(against={"idea": "base"})
    (line,) = plots.lines(found.paper.figures["f"], found)
    assert line.printed == ((20, pytest.approx(7.0)),)
    (figure,) = plots.draw_figures(found, tmp_path)
    hollow = [one for one in drawn[0].axes[0].lines if one.get_marker() == "D"]
    assert [list(one.get_ydata()) for one in hollow] == [[pytest.approx(7.0)]]  # type: ignore[arg-type]
    assert hollow[0].get_markerfacecolor() == "none"
    assert "printed" in [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert "Hollow: as printed, for the end of the paper's own training." in figure.caption


def test_a_gain_in_words_is_printed_too() -> None:
    test = {"kind": "better", "pairs": [["t/guess/final", "t/base/final"], ["t/idea/final", "t/base/final"]]}
    claims = {"gain": {"claim": "c", "source": "s", "test": {**test, "reported": [1, 16]}}}
    found = paper(claims=claims, against={"idea": "base"})
    (line,) = plots.lines(found.paper.figures["f"], found)
    assert line.printed == ((20, 16.0),)


def test_what_guesses_is_named_and_not_drawn(drawn: list[Figure], tmp_path: Path) -> None:
    (figure,) = plots.draw_figures(paper(skip_guessing=True), tmp_path)
    assert "Not drawn, since it guesses: Guess (at most 10.7 %)." in figure.caption
    labels = drawn[0].axes[0].get_legend_handles_labels()[1]
    assert labels == ["Base", "Idea"] and "Guess" not in figure.alt
    nobody = dict.fromkeys(RUNS, RUNS["guess"])
    (figure,) = plots.draw_figures(paper(nobody, skip_guessing=True), tmp_path)
    assert "Not drawn" not in figure.caption and len(drawn[1].axes[0].get_legend_handles_labels()[1]) == 3
    (figure,) = plots.draw_figures(paper(), tmp_path)
    assert "Not drawn" not in figure.caption and "Guess" in figure.alt


def test_intervals_are_bars_or_a_band(drawn: list[Figure], tmp_path: Path) -> None:
    (figure,) = plots.draw_figures(paper(), tmp_path)
    bars = [one for one in drawn[0].axes[0].containers if isinstance(one, ErrorbarContainer)]
    assert len(bars) == 3 and "Bars: 95 % intervals over 3 seeds." in figure.caption
    collection = bars[0][2][0]
    assert isinstance(collection, LineCollection)
    low, high = collection.get_segments()[1][:, 1]
    half = 4.302653 * 10 / math.sqrt(3)
    assert (low, high) == (pytest.approx(60 - half, rel=1e-6), pytest.approx(60 + half, rel=1e-6))
    long = {"base": {seed: tuple(50.0 + seed + step for step in range(13)) for seed in range(3)}}
    (figure,) = plots.draw_figures(paper(long, claims={}), tmp_path)
    axes = drawn[1].axes[0]
    assert "Bands: 95 %" in figure.caption and any(isinstance(one, PolyCollection) for one in axes.collections)
    (figure,) = plots.draw_figures(paper({"base": {0: (40.0, 60.0)}}, claims={}), tmp_path)
    assert figure.caption == "Made. One seed."
    (figure,) = plots.draw_figures(paper(long | {"idea": {0: (50.0,) * 13, 1: (60.0,) * 13}}, claims={}), tmp_path)
    assert "over 2 seeds." in figure.caption  # those that both share: others' luck is no difference between lines
    assert "Base 62.5," in figure.alt  # 50 + seed + 12 over seeds 0 and 1


def test_bars_of_several_lines_are_beside_each_other(drawn: list[Figure], tmp_path: Path) -> None:
    plots.draw_figures(paper(), tmp_path)
    ends = [float(bar[0].get_xdata()[-1]) for bar in drawn[0].axes[0].containers]  # type: ignore[attr-defined]
    assert ends[1] == 20 and ends[0] < ends[1] < ends[2] and ends[2] - ends[0] < 0.5


def test_an_accuracys_bar_ends_at_100_and_a_logarithm_is_one(drawn: list[Figure], tmp_path: Path) -> None:
    wide = {"base": {0: (50.0, 99.0), 1: (50.0, 90.0)}}
    plots.draw_figures(paper(wide, claims={}), tmp_path)
    _, high = drawn[0].axes[0].containers[0][2][0].get_segments()[1][:, 1]  # type: ignore[attr-defined]
    assert high == pytest.approx(100.0)
    plots.draw_figures(paper(ylog=True), tmp_path)
    assert drawn[1].axes[0].get_yscale() == "log"


def test_a_figure_of_differences_says_from_what(drawn: list[Figure], tmp_path: Path) -> None:
    (figure,) = plots.draw_figures(paper(against={"idea": "base"}), tmp_path)
    assert drawn[0].axes[0].get_ylabel() == "difference in points"
    assert "“Base”, from which they are taken: 60 ± 25 in round 20." in figure.caption
    assert "95 % intervals of the paired differences over 3 seeds" in figure.caption and "Idea 4" in figure.alt
    plots.draw_figures(paper(against={"idea": "base", "base": "guess"}), tmp_path)
    assert drawn[1].axes[0].get_legend_handles_labels()[1] == ["Idea, against Base", "Base, against Guess"]


def test_the_committed_figures_have_one_kind_of_interval() -> None:
    for file in RESULTS.glob("*/results.json"):
        for figure in json.loads(file.read_text(encoding="utf-8")).get("figures", ()):
            said = "95 % intervals" in figure["caption"] or figure["caption"].endswith("One seed.")
            assert said and "standard deviation" not in figure["caption"], figure


# --- boards ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def boards() -> list[Board]:
    return list(read_study(RESULTS / "leaderboard", Leaderboard).boards)


def test_the_overview_has_a_panel_for_each_board(boards: list[Board], drawn: list[Figure], tmp_path: Path) -> None:
    """By who is trusted; what each role has at each target stands in its board's own panel."""
    picture = plots.draw_overview(boards, tmp_path)
    assert picture is not None and plots.draw_overview([], tmp_path) is None
    panels = {" ".join(axes.get_title("left").split()): axes for axes in drawn[0].axes}
    assert list(panels) == [board.title for _, here in by_question(boards) for board in here]
    assert [part.get_suptitle() for part in drawn[0].subfigs] == [
        one.title for one, here in by_question(boards) if here
    ]
    for board in boards:
        lines = [list(bar[0].get_ydata()) for bar in panels[board.title].containers]  # type: ignore[attr-defined]
        assert lines == [
            [one.accuracy.mean for one in own] for *_, r in plots.ROLES if (own := plots.of_role(board, r))
        ]
        best = max((entry.accuracy.mean or 0.0) for entry in board.entries)
        assert max(map(max, lines)) == best


def test_an_auc_stands_on_no_axis_of_accuracies(boards: list[Board], drawn: list[Figure], tmp_path: Path) -> None:
    plots.draw_overview(boards, tmp_path)
    labels = {board.title: "AUC, %" if board.metric == "auc" else "accuracy, %" for board in boards}
    assert "AUC, %" in labels.values()
    assert {" ".join(axes.get_title("left").split()): axes.get_ylabel() for axes in drawn[0].axes} == labels


def test_a_telephone_shows_letters_of_eleven_pixels(boards: list[Board], tmp_path: Path) -> None:
    """Where 358 of its 390 pixels are the page's."""
    plots.draw_overview(boards, tmp_path)
    text = (tmp_path / "overview.svg").read_text()
    width = float(re.findall(r'width="([\d.]+)pt"', text)[0])
    sizes = {float(size) for size in re.findall(r"font-size: ([\d.]+)px", text)}
    assert sizes and min(sizes) * 358 / width >= 11


def test_the_same_results_give_the_same_file(boards: list[Board], tmp_path: Path) -> None:
    files = []
    for name in "ab":
        (tmp_path / name).mkdir()
        plots.draw_overview(boards, tmp_path / name)
        files.append((tmp_path / name / "overview.svg").read_bytes())
    assert files[0] == files[1] and len(files[0]) < 150_000
