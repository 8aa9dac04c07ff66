"""The pictures: infinity is drawn, gaps are gaps, nothing touches global state."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from report_runs import full_run, metrics, privacy, whole_page

from fedpriv.report import attacks, label_plot, page, pictures, plots, tables
from fedpriv.report.compare import Comparison, Group, mean_curve
from fedpriv.report.pictures import BLUE
from fedpriv.report.reading import RunFolder, read_run
from fedpriv.report.run_summary import Answer, Privacy, Summary


def record(**changes):
    return Privacy.model_validate(privacy(**changes))


def bands(number):
    """As many groups of two runs, each of two rounds."""
    groups = []
    for n in range(number):
        curves = [[{"round": r, "accuracy": 0.5 + (r - 1) * n / 30 + spread} for r in (1, 2)] for spread in (-0.1, 0.1)]
        runs = [RunFolder(Path("run"), {}, "", rounds, {}) for rounds in curves]
        groups.append(Group({"group.name": f"g{n}"}, runs, {}))
    return Comparison(groups, [], [])


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


def test_the_least_number_above_0_has_a_place(axes):
    plots.log_axis(axes, [5e-324, 1.0])
    assert axes.get_ylim()[0] > 0 and len(labels(axes)) > 2


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


@pytest.mark.parametrize("options", [{}, {"dpi": 150}])
def test_a_picture_is_drawn_once_for_each_form_and_is_that_of_savefig(options, monkeypatch, tmp_path):
    """matplotlib's own ``savefig`` draws a figure whose layout is computed once more."""

    def a_figure() -> Figure:
        figure, axes = plots.blank_figure("A title", "a label that needs its room")
        plots.draw_line(axes, [1, 2, 3], [0.1, 1e5, 3e5], BLUE, "line")
        plots._legend(figure)
        return figure

    one, other, draws = a_figure(), a_figure(), []
    with rc_context({"svg.hashsalt": "same"}):
        pictures.save_themed(one, tmp_path / "one.png", **options)
        other.savefig(tmp_path / "other.png", **options)
        other.set_layout_engine("none")
        other.savefig(tmp_path / "other.svg", metadata={"Date": None})
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "other.png").read_bytes()
    assert (tmp_path / "one.svg").read_text() == pictures.themed((tmp_path / "other.svg").read_text())
    assert one.dpi == 200
    monkeypatch.setattr(Axes, "draw", lambda *_, **__: draws.append(1))
    pictures.save_themed(a_figure(), tmp_path / "one.png", **options)
    assert len(draws) == 2


def lines(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}


def test_epsilon_turning_infinite_is_drawn_to_the_top(drawn, tmp_path):
    rounds = [{"round": i, "epsilon_so_far": value} for i, value in enumerate([1.0, 2.0, "inf"], start=1)]
    picture = plots.draw_epsilon(rounds, record(verified_epsilon="inf", claimed_epsilon=1.5), tmp_path)
    found = lines(drawn["epsilon.png"])
    top = labels(drawn["epsilon.png"])["∞"]
    assert found["spent so far"] == ([1, 2, 3], [1.0, 2.0, top])
    assert found["verified, whole run: ∞"][1] == [top, top]
    assert found["claimed, whole run: 1.5"][1] == [1.5, 1.5]
    assert "without finite bound after round 3" in picture.alt


def test_a_claim_about_one_round_is_not_a_level_of_the_run(drawn, tmp_path):
    plots.draw_epsilon(metrics(5, 0.9), record(claimed_scope="round"), tmp_path)
    assert not any("claimed" in label for label in lines(drawn["epsilon.png"]))


def test_rounds_without_evaluation_are_left_out(drawn, tmp_path):
    plots.draw_metric(metrics(10, 0.9, every=4), tmp_path)
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
    empty = Group({"group.name": "empty"}, [RunFolder(Path("run"), {}, "", [], {})], {})
    plots.draw_comparison(Comparison([*bands(9).groups, empty], [], []), tmp_path)
    axes = drawn["comparison.png"]
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(axes.lines) == len(looks) == 9
    edges = axes.collections[3].get_paths()[0].get_extents()
    assert (edges.ymin, edges.ymax) == (pytest.approx(0.5 - 0.02**0.5), pytest.approx(0.6 + 0.02**0.5))


def test_metrics_of_two_kinds_have_no_axis_in_common(drawn, tmp_path):
    other = RunFolder(Path("run"), {}, "", [{"round": 1, "metrics": {"rmse": 60.0}}], {})
    with_rmse = Comparison([*bands(2).groups, Group({"group.name": "rmse"}, [other], {})], [], [])
    assert mean_curve(with_rmse.groups[-1])[3] == "rmse"
    assert plots.draw_comparison(with_rmse, tmp_path) is None and list(tmp_path.iterdir()) == []


def test_long_names_leave_room_for_the_axes(drawn, tmp_path):
    """Each takes several lines below the axes; matplotlib warns where nothing is left of these."""
    groups = [replace(one, options={"group.name": f"{n} " * 150}) for n, one in enumerate(bands(4).groups)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots.draw_comparison(Comparison(groups, [], []), tmp_path)


def test_nothing_to_draw_is_no_picture(tmp_path):
    assert plots.draw_run([], record(), tmp_path) == [] and plots.draw_comparison(bands(0), tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_pyplot_is_never_imported():
    code = "import sys, fedpriv.report.page; print('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# --- on a page ------------------------------------------------------------------------------------------

#: A page that can be mailed.
MAIL = 3_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return full_run(tmp_path_factory.mktemp("report") / "run")


def test_no_legend_and_no_word_is_over_a_line(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figures = {}
    for module in (plots, attacks):
        monkeypatch.setattr(module, "save_themed", lambda figure, file, **_: figures.setdefault(file.name, figure))
    run = read_run(folder)
    plots.draw_run(run.rounds, record(), tmp_path)
    plots.draw_private(run.rounds, tmp_path)
    plots.draw_comparison(bands(9), tmp_path)
    attacks.draw_attacks(folder / "private")
    assert len(figures) == 9
    for name, figure in figures.items():
        figure.canvas.draw()
        axes = figure.axes[0]
        legends = [*figure.legends, *filter(None, [axes.get_legend()])]
        assert len(legends) == (name != "accuracy.png"), name
        for one in (*legends, *axes.texts):
            place = one.get_window_extent()
            assert not place.overlaps(axes.bbox), name
            assert place.x0 >= 0 and place.y0 >= 0 and place.x1 <= figure.bbox.x1 and place.y1 <= figure.bbox.y1, name


def test_a_page_with_everything_stays_small_enough_for_mail(tmp_path: Path) -> None:
    folder = full_run(tmp_path / "run", rounds=600, clients=100)
    page = whole_page(folder)
    assert page.stat().st_size < MAIL
    assert len(re.findall(r'<img src="data:image/svg', page.read_text())) == 10


def test_a_picture_of_too_many_marks_is_shown_as_pixels(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"png")
    (tmp_path / "a.svg").write_bytes(b"x" * (pictures.MOST + 1))
    picture = pictures.Picture("a.png", "alt", "caption")
    assert pictures.shown(tmp_path, picture).source == "data:image/png;base64,cG5n"
    (tmp_path / "a.svg").write_bytes(b"<svg/>")
    assert pictures.shown(tmp_path, picture).source.startswith("data:image/svg+xml;")
    pictures.remove_picture(tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", sorted({*pictures.DARK} - {pictures.PAPER, pictures.FAINT}))
def test_lines_and_words_stand_out_from_a_dark_page(colour: str) -> None:
    paper, line = luminance(pictures.DARK[pictures.PAPER]), luminance(pictures.DARK[colour])
    assert (line + 0.05) / (paper + 0.05) > (4.5 if colour in (pictures.INK, pictures.SOFT) else 3)


def test_every_colour_of_the_pictures_has_a_dark_twin(folder: Path) -> None:
    whole_page(folder)
    own = {colour.lower() for colour in pictures.DARK}
    for file in folder.glob("*.svg"):
        style, drawn = re.search(r"<style>.*?</style>", file.read_text())[0], file.read_text()  # type: ignore[index]
        used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", drawn.replace(style, "")))
        if file.stem == "labels":  # one colour for each class, of middle lightness
            used &= own
        assert used <= own, file.name
        assert all(f'"stroke: {colour}"]' in style and f'"fill: {colour}"]' in style for colour in used), file.name


# --- answers ------------------------------------------------------------------------------------------------------


def answer(question: str, *lines: tuple[str, float, float, float]) -> Answer:
    of, values, low, high = zip(*lines, strict=True)
    return Answer(question=question, of=list(of), values=list(values), low=list(low), high=list(high))


SURVIVAL = [
    (f"{arm} at {time}", 1 - time / 200, 0.9 - time / 200, 1.0) for arm in ("old", "new") for time in (12, 24, 36)
]
SCORE = [
    ("AUC", 0.81, 0.78, 0.84),
    ("observed at 0 to 0.2, mean score 0.1", 0.12, 0.1, 0.15),
    ("observed at 0.2 to 1, mean score 0.6", 0.5, 0.4, 0.6),
    ("sensitivity at 0.2", 0.8, 0.7, 0.9),
    ("specificity at 0.2", 0.7, 0.6, 0.8),
]
DRAWN = {
    "histogram": (answer("histogram:sex", ("f", 12, 9, 15), ("m", 7, 4, 10)), ["histogram"], "largest is f, about 12"),
    "top": (answer("top:ward:1", ("a", 3, 1, 5), ("b", 9, 7, 11)), ["histogram"], "largest is b, about 9"),
    "quantiles": (
        answer("quantiles:age:0.1:0.9", ("0.1", 40, 39, 41), ("0.9", 70, 66, 71)), ["quantiles"],
        "2 quantiles from 40 to 70",
    ),
    "survival": (answer("survival:months:died:arm", *SURVIVAL), ["survival"], "old 82.0 %, new 82.0 %"),
    "score": (answer("score:run", *SCORE), ["calibration", "roc"], "area 0.810 (0.780 to 0.840)"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DRAWN)
def test_answers_are_drawn_with_their_intervals(kind, tmp_path, monkeypatch):
    one, parts, words = DRAWN[kind]
    figures = []
    save = plots.save_themed
    monkeypatch.setattr(plots, "save_themed", lambda figure, file: (figures.append(figure), save(figure, file)))
    drawn = plots.draw_answers([answer("count", ("units", 3, 2, 4)), one], tmp_path)
    assert [picture.file for picture in drawn] == [f"answer-2-{part}.png" for part in parts]
    assert words in drawn[-1].alt and one.question in drawn[-1].caption
    axes = figures[-1].axes[0]
    low, high = (np.array([getattr(one, end)[place] for place in range(len(one.of))]) for end in ("low", "high"))
    marks = [path.vertices[:, 1] for lines in axes.collections for path in lines.get_paths()]
    if kind == "quantiles":
        marks = [segment[:, 0] for segment in axes.collections[0].get_segments()]
    reach = np.concatenate(marks)
    shown = {"top": [1], "score": [3]}.get(kind, range(len(one.of)))
    for place in shown:
        assert np.isclose(reach, low[place]).any() and np.isclose(reach, high[place]).any(), one.of[place]


def test_a_roc_curve_runs_from_corner_to_corner_and_above_chance(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plots, "save_themed", lambda figure, file: figures.append(figure))
    plots.draw_answers([answer("score:run", *SCORE)], tmp_path)
    curve = figures[-1].axes[0].get_lines()[-1].get_xydata()
    assert curve.tolist() == pytest.approx(np.array([[0, 0], [0.3, 0.8], [1, 1]]))
    calibration = figures[0].axes[0].get_lines()[-1].get_xydata()
    assert calibration.tolist() == pytest.approx(np.array([[0.1, 0.12], [0.6, 0.5]]))


@pytest.mark.parametrize(
    "one",
    [
        answer("histogram", ("f", 12, 9, 15), ("m", 7, 4, 10)),
        answer("top:ward:many", ("a", 3, 1, 5), ("b", 9, 7, 11)),
        answer("quantiles:age:a:b", ("a", 1, 0, 2), ("b", 3, 2, 4)),
        answer("survival", ("old", 1, 0, 2)),
        answer("score:run", ("sensitivity at 0.2", 1, 0, 1)),
        answer("histogram:x", ("f", math.inf, 0, 1), ("m", math.nan, 0, 1)),
        Answer(question="histogram:x", of=["a", "b"], values=[1.0], low=[], high=[]),
    ],
)
def test_a_folder_of_anybodys_draws_nothing_and_breaks_nothing(one, tmp_path):
    assert plots.draw_answers([one], tmp_path) == [] and not [*tmp_path.iterdir()]


def test_names_are_no_formulas(tmp_path):
    one = answer("histogram:$\\frac{", ("$\\nonsense{$", 12, 9, 15), ("m", 7, 4, 10))
    assert len(plots.draw_answers([one], tmp_path)) == 1


@pytest.mark.parametrize(
    ("numbers", "whole", "shown"),
    [
        ((0.37559, 0.33042, 0.42193), False, ["0.376", "0.330", "0.422"]),
        ((570.48, 545.14, 595.82), False, ["570", "545", "596"]),
        ((12345.6, 11111.1, 13580.1), True, ["12,300", "11,100", "13,600"]),
        ((569.19, 560.41, 577.84), True, ["569", "560", "578"]),
        ((2.1, 1.5, 2.5), True, ["2.10", "1.50", "2.50"]),
        ((-0.001, -0.3, 0.3), False, ["0.00", "-0.30", "0.30"]),
        ((1e-7, 5e-8, 1.5e-7), False, ["0.000000100", "0.000000050", "0.000000150"]),
        ((3.14159265, 3.14159265, 3.14159265), False, ["3.1416", "3.1416", "3.1416"]),
        ((1.0, -math.inf, math.inf), False, ["1", "-inf", "inf"]),
    ],
)
def test_digits_are_those_that_the_noise_leaves(numbers, whole, shown):
    assert tables.digits(*numbers, whole) == shown


def summary_of(*answers):
    return Summary(answers=[one.model_dump() for one in answers])


def test_combinations_are_a_table_and_no_lines():
    cells = [(f"{a} and {b}", 10.0, 8.0, 12.0) for a in ("x", "y and z") for b in ("no", "yes")]
    summary = summary_of(answer("table:a:b", *cells), answer("count", ("units", 3, 2, 4)))
    ((question, header, rows),) = tables.cross_tables(summary)
    assert (question, header) == ("table:a:b", ["a", "no", "yes"])
    assert rows == [["x", "10 (8 to 12)", "10 (8 to 12)"], ["y and z", "10 (8 to 12)", "10 (8 to 12)"]]
    assert [row[1] for row in tables.answer_rows(summary, ["table:a:b"])] == ["units"]
    ragged = summary_of(answer("table:a:b", *cells[:3]), answer("table:a:b", *cells[:1]))
    assert tables.cross_tables(ragged) == [] and len(tables.answer_rows(ragged)) == 4
    cells = [(f"{a} predicted {b}", 0.25, 0.2, 0.3) for a in "ab" for b in "ab"]
    model = summary_of(answer("score:run", ("rows", 5, 4, 6), *cells))
    assert tables.cross_tables(model)[0][2][0] == ["a", "0.250 (0.200 to 0.300)", "0.250 (0.200 to 0.300)"]
    assert [row[1] for row in tables.answer_rows(model, ["score:run"])] == ["rows"]


def test_letters_are_read_on_a_phone(tmp_path, monkeypatch):
    """Of every picture of a run's page, 332 pixels wide on a screen of 390: at least 11 pixels."""
    seen = {}

    def save(figure, file, **options):
        points = [text.get_fontsize() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
        seen[file.name] = min(points) * 332 / (72 * figure.get_size_inches()[0])

    for module in (plots, attacks, label_plot):
        monkeypatch.setattr(module, "save_themed", save)
    monkeypatch.setattr(page, "shown", lambda folder, picture: picture)
    folder = full_run(tmp_path / "run")
    whole_page(folder)
    plots.draw_comparison(bands(3), tmp_path)
    assert {"audit.png", "labels.png", "accuracy.png", "noise.png", "comparison.png"} <= {*seen}
    assert min(seen.values()) >= 10.95, seen
