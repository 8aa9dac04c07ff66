"""The pictures: infinity is drawn, gaps are gaps, nothing touches global state."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from matplotlib.axes import Axes
from report_runs import metrics, privacy

from fedpriv.report import plots


@pytest.fixture
def axes():
    return plots.blank_figure("test")[1]


def labels(axes: Axes) -> dict[str, float]:
    return {label.get_text(): tick for label, tick in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)}


@pytest.mark.parametrize("finite", [[1.0, 2.0, 3.0], [1e-3, 5.0, 4e6], [0.0], []])
def test_infinity_is_a_labelled_line_above_everything_finite(axes, finite):
    place = plots._with_infinity(axes, [*finite, math.inf])
    top = place(math.inf)
    low, high = axes.get_ylim()
    assert labels(axes)["∞"] == top and low < top < high
    assert all(low <= place(value) < top for value in finite)
    assert [place(value) for value in finite if value > 0] == [value for value in finite if value > 0]


def test_without_infinity_there_is_no_such_tick(axes):
    place = plots._with_infinity(axes, [1.0, 3.0])
    assert "∞" not in labels(axes) and axes.get_ylim()[1] > 3.0 and place(2.0) == 2.0


@pytest.fixture
def drawn(monkeypatch):
    """The figures as they are saved, by file name."""
    figures = {}

    def save(figure, file):
        figures[file.name] = figure.axes[0]

    monkeypatch.setattr(plots, "save_themed", save)
    return figures


def lines(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}


def test_epsilon_turning_infinite_is_drawn_to_the_top(drawn, tmp_path):
    rounds = [{"round": i, "epsilon_so_far": value} for i, value in enumerate([1.0, 2.0, "inf"], start=1)]
    picture = plots.draw_epsilon(rounds, privacy(verified_epsilon="inf", claimed_epsilon=1.5), tmp_path)
    found = lines(drawn["epsilon.png"])
    top = labels(drawn["epsilon.png"])["∞"]
    assert found["spent so far"] == ([1, 2, 3], [1.0, 2.0, top])
    assert found["verified, whole run: ∞"][1] == [top, top]
    assert found["claimed, whole run: 1.5"][1] == [1.5, 1.5]
    assert "without finite bound after round 3" in picture.alt


def test_a_claim_about_one_round_is_not_a_level_of_the_run(drawn, tmp_path):
    plots.draw_epsilon(metrics(5, 0.9), privacy(claimed_scope="round"), tmp_path)
    assert not any("claimed" in label for label in lines(drawn["epsilon.png"]))


def test_rounds_without_evaluation_are_left_out(drawn, tmp_path):
    plots.draw_accuracy(metrics(10, 0.9, every=4), tmp_path)
    x, y = lines(drawn["accuracy.png"])["test accuracy"]
    assert x == [4, 8, 10] and y[-1] == pytest.approx(0.9)


def test_noise_is_on_a_logarithmic_axis_against_the_update(drawn, tmp_path):
    rounds = [
        {"round": 1, "update_norm": 2.0, "clipped_norm": 1.0, "noise_norm": 100.0},
        {"round": 2, "update_norm": 3.0, "clipped_norm": 1.0, "noise_norm": 300.0},
        {"round": 3, "update_norm": 0.0, "clipped_norm": 0.0, "noise_norm": "inf"},
    ]
    picture = plots.draw_noise(rounds, tmp_path)
    axes = drawn["noise.png"]
    assert axes.get_yscale() == "log" and axes.get_title(loc="left") == "Noise is 200 × the clipped update"
    assert lines(axes) == {
        "update": ([1, 2], [2.0, 3.0]),
        "update, clipped": ([1, 2], [1.0, 1.0]),
        "noise": ([1, 2], [100.0, 300.0]),
    }
    assert "noise 300" in picture.alt and "No noise" not in picture.caption


def test_the_clip_norm_beside_what_was_reported(drawn, tmp_path):
    rounds = [
        {"round": 1, "update_norm": 2.0, "figures": {"clip_norm": 4.0, "reported_norms": {"0": 1.5, "3": 2.5}}},
        {"round": 2, "update_norm": 1.0, "figures": {"clip_norm": 3.0, "reported_norms": {"0": 0.0, "3": 0.5}}},
    ]
    picture = plots.draw_clipping(rounds, tmp_path)
    found = lines(drawn["clipping.png"])
    assert found["clip norm C"] == ([1, 2], [4.0, 3.0]) and found["update, mean"] == ([1, 2], [2.0, 1.0])
    assert found["norm, as reported"] == ([1, 1, 2], [1.5, 2.5, 0.5])  # a norm of 0 has no place on the axis
    assert "from 4 to 3" in picture.alt
    assert plots.draw_clipping([{"round": 1, "figures": {}}, {"round": 2}], tmp_path) is None


def test_a_comparison_has_a_line_and_a_band_per_group(drawn, tmp_path):
    bands = [plots.Band(f"g{i}", [1, 2], [0.5, 0.5 + i / 30], [0.1, 0.1]) for i in range(9)]
    plots.draw_comparison([*bands, plots.Band("empty", [], [], [])], tmp_path)
    axes = drawn["comparison.png"]
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(axes.lines) == len(looks) == 9
    edges = axes.collections[3].get_paths()[0].get_extents()
    assert (edges.ymin, edges.ymax) == (pytest.approx(0.4), pytest.approx(0.7))


def test_nothing_to_draw_is_no_picture(tmp_path):
    assert plots.draw_run([], privacy(), tmp_path) == [] and plots.draw_comparison([], tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_pyplot_is_never_imported():
    code = "import sys, fedpriv.report.page; print('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
