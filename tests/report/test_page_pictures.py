"""The pictures of a page: in it, for light and dark, small; legends beside the lines and never over them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from report_runs import full_run, make_run, privacy, whole_page

from fedpriv.report import attacks, pictures, plots
from fedpriv.report.compare import compare
from fedpriv.report.page import write_comparison
from fedpriv.report.reading import read_run

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
    plots.draw_run(run.rounds, privacy(), tmp_path)
    plots.draw_private(run.rounds, tmp_path)
    plots.draw_comparison([plots.Band(f"group {i}", [1, 2], [0.5, 0.9], [0.1, 0.2]) for i in range(9)], tmp_path)
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


# --- figures in words -----------------------------------------------------------------------------------------


def test_an_interval_of_accuracies_ends_at_100_percent(tmp_path: Path) -> None:
    from fedpriv.report.tables import comparison_tables

    for seed, accuracy in enumerate((0.999, 0.97, 0.999)):
        make_run(tmp_path / f"{seed}", rounds=2, seed=seed, accuracy=accuracy)
    comparison = compare([read_run(path) for path in sorted(tmp_path.iterdir())])
    (table,) = comparison_tables(comparison)
    assert table.rows[0][table.header.index("95% interval")] == "94.8–100.0 %"
    page, *_ = write_comparison(comparison, tmp_path)
    assert "94.8–100.0 %" in page.read_text()


def test_within_a_huge_guarantee_shows_nothing(folder: Path, tmp_path: Path) -> None:
    words = " ".join(whole_page(folder).read_text().split())
    assert "An epsilon of 12,660 promises next to nothing. What any attack finds lies within it" in words
    assert "comparison shows nothing" in words
    modest = " ".join(whole_page(full_run(tmp_path / "modest", epsilon=2.0)).read_text().split())
    assert "shows nothing" not in modest and "shows little" not in modest
    assert "It allows a balanced accuracy of 0.881." in modest  # e^2 / (1 + e^2)


def test_every_epsilon_of_a_page_says_what_it_promises(folder: Path) -> None:
    page = whole_page(folder).read_text()
    section = page[page.index("<h2>Privacy</h2>") : page.index("<details")]
    rows = re.findall(r'<td class="epsilon">([^<]+)</td>.*?<span class="promise">([^<]+)</span>', section, re.DOTALL)
    assert rows == [
        ("8", "a modest promise, if it holds"),
        ("12,660", "next to no promise"),
        ("12,660", "next to no promise"),
        ("12,660", "next to no promise"),
        ("7.4", "at best a modest promise"),
    ]
    assert section.count('class="epsilon"') == 5
    tiles = re.findall(r"epsilon</span>\n<b>([^<]+)</b>\n<span>([^<]+)</span>", page)
    assert tiles == [
        ("8", "for one round: a modest promise, if it holds"),
        ("12,660", "for the whole run: next to no promise"),
        ("7.4", "for one round: at best a modest promise"),
    ]
