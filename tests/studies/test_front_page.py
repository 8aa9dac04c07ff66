"""The head of a folder of studies: its sentences are those that the results give, and stay true when they change."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from fedpriv.config.compose import CONF
from fedpriv.studies import found_plot
from fedpriv.studies.front_page import BEGIN, END, main, refresh, refresh_beside, with_head
from fedpriv.studies.leaderboard_page import ideas_counted
from fedpriv.studies.results import Board, Cell, Entry, Estimate, TableRow, TuningCost
from fedpriv.studies.what_was_found import Found, answers, read, sentences, words

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def committed() -> Found:
    return read(RESULTS)


def copied(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
        shutil.copy(RESULTS / name / "results.json", folder / name / "results.json")
    return folder


def estimate(mean: float) -> Estimate:
    return Estimate(n=4, mean=mean, std=0.1, half_width=0.16)


def board(board: Board, **changes: Any) -> Board:
    return board.model_copy(update=changes)


def entry(one: Entry, **changes: Any) -> Entry:
    if "mean" in changes:
        changes["accuracy"] = estimate(changes.pop("mean"))
    return one.model_copy(update=changes)


def of(found: Found, name: str) -> Board:
    return next(one for one in found.boards if one.name == name)


# --- the committed page ----------------------------------------------------------------------------------


def test_the_committed_head_is_what_the_committed_results_give(committed: Found, tmp_path: Path) -> None:
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    head = page.partition(BEGIN)[2].partition(END)[0]
    assert page.startswith("# Results\n\n" + BEGIN)
    picture = found_plot.draw(committed.boards, tmp_path)
    assert picture is not None
    assert head.strip().split("\n") == [
        f"![{picture.alt}]({picture.file})",
        "",
        picture.caption,
        "",
        *words(committed)[:-1],
    ]
    assert (RESULTS / picture.file).is_file() and (RESULTS / "overview.png").is_file()
    assert sum(line.startswith("- ") for line in head.split("\n")) == 4
    prose = [line for line in head.split("\n") if line[:1] not in ("|", "!") and not line.startswith("Bars: ")]
    assert len(" ".join(prose).split()) <= 250


def test_totals_are_those_of_the_papers_pages(committed: Found) -> None:
    """By other code: from the JSON itself, findings beyond the papers left out, the two settings apart."""
    claims = [json.loads((RESULTS / name / "results.json").read_text())["claims"] for name in committed.papers]
    every = [claim for paper in claims for claim in paper if not claim["beyond"]]
    first = next(sentences(committed))
    assert first.startswith(f"Of {len(every)} claims of {len(claims)} papers")
    rows = [line for line in words(committed) if line.startswith("| [") and "[command]" not in line]
    for row, paper, own in zip(rows, committed.papers, claims, strict=True):
        numbers = [int(number) for cell in row.split("|")[2:6] for number in cell.split(" / ")]
        given = [claim for claim in own if not claim["beyond"]]
        tested = [claim for claim in given if claim["verdict"] != "cannot be tested here"]
        assert f"]({paper}/README.md)" in row and numbers[0] == len(given) == sum(numbers[1:])
        for place, other in ((1, False), (4, True)):
            here = [claim["verdict"] for claim in tested if bool(claim["setting"]) is other]
            wanted = [here.count(one) for one in ("holds", "does not hold", "not decided")]
            assert numbers[place : place + 3] == wanted


def test_the_first_table_has_the_best_with_features_and_on_pixels(committed: Found) -> None:
    one = next(e for e in of(committed, "client_server").entries if e.idea == "plain")
    entries = (
        entry(one, target=8.0, method="a-strokes", label="A", mean=70.0),
        entry(one, target=8.0, method="b", label="B", mean=60.0),
        entry(one, target=8.0, method="c", label="C", mean=50.0),
        entry(one, target=1.0, method="b", label="B", mean=40.0),
    )
    made = board(of(committed, "client_server"), title="T", entries=entries, reference=estimate(92.0))
    made = board(made, alone=None, on_features=None)
    row = answers([made])[-2]
    link = "[command](leaderboard/README.md#commands)"
    assert row == (
        "| Nobody is trusted: [T](leaderboard/nobody_trusted.md) | at 1: 40.00 ± 0.16 | at 1: 40.00 ± 0.16 | "
        f"70.00 ± 0.16 / 60.00 ± 0.16 | 92.00 ± 0.16 | {link} |"
    )
    other = board(made, entries=(entry(entries[0], method="a-edges"), *entries[1:]), on_features=estimate(99.0))
    row = answers([other])[-2]  # features are features with the stroke map and without it
    assert f"70.00 ± 0.16 / 60.00 ± 0.16 | 99.00 ± 0.16 / 92.00 ± 0.16 | {link} |" in row
    alone = answers([board(made, alone=estimate(88.0))])[-2]
    assert alone.count("stay alone: 88.00 ± 0.16 (best: ") == 3
    far = answers([board(made, entries=entries[:2])])[-2]
    assert far.split(" | ")[1:3] == ["–", "–"]
    early = answers([board(made, entries=entries[:2], alone=estimate(88.0))])[-2]
    assert early.split(" | ")[1:3] == ["stay alone: 88.00 ± 0.16"] * 2


def test_duels_are_counted_under_the_names_of_ideas(committed: Found) -> None:
    counted = ideas_counted(committed.boards)
    assert sum(sum(one.values()) for one in counted.values()) == sum(len(one.duels) for one in committed.boards)
    assert {"ADP-FL", "Fed-LDP with ADP-FL's clip rule", "AGN", "DPFL-AGN", "Fed-CAD"} <= counted.keys()
    raw = json.loads((RESULTS / "leaderboard" / "results.json").read_text())["boards"]
    own = [duel["outcome"] for one in raw for duel in one["duels"] if duel["method"] == "adpfl"]
    assert dict(counted["ADP-FL"]) == {outcome: own.count(outcome) for outcome in set(own)}


def test_the_head_says_whether_options_of_the_ideas_were_searched(committed: Found) -> None:
    """Of the boards by their files: a paper's idea is searched in its rates and clip norm, or in more in some row."""
    said = next(one for one in sentences(committed) if one.startswith("Ideas of the papers"))
    plans = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in sorted((CONF / "leaderboard").glob("*.yaml"))]
    ranked = {entry.label for made in committed.boards for entry in made.entries}
    searched: dict[str, set[str]] = {}
    for method in (method for plan in plans for method in plan["methods"] if method["idea"] == "paper"):
        if method["label"] in ranked:
            options = {option.rpartition(".")[2] for option in method["search"]}
            searched.setdefault(method["label"].partition(",")[0], set()).update(options)
    default = sorted(idea for idea, options in searched.items() if options <= {"lr", "clip_norm", "radius"})
    assert said.endswith(f"Options of the idea alone stood at their defaults: {', '.join(default)}.") and default
    own = "Fed-CAD"
    assert own not in default
    boards = [
        board(
            made,
            entries=tuple(entry(e, chosen={"local.lr": "1"}) if e.label.startswith(own) else e for e in made.entries),
        )
        for made in committed.boards
    ]
    other = next(one for one in sentences(Found(committed.papers, boards)) if one.startswith("Ideas of the papers"))
    assert other.endswith(f": {', '.join(sorted([*default, own]))}.")


def test_a_printed_accuracy_is_reached_at_a_point_below(committed: Found) -> None:
    paper = committed.papers["coqfl"]
    table = paper.tables[0]

    def said(*cells: tuple[float, int, float], notes: tuple[str, ...] = ()) -> str:
        found = [Cell(measured=Estimate(n=n, mean=m, std=1.0, half_width=9.0), reported=r) for m, n, r in cells]
        rows = (TableRow(name="r", label="R", cells=tuple(found)),)
        made = table.model_copy(
            update={"unit": "%", "columns": tuple("abcdef"[: len(found)]), "rows": rows, "notes": notes}
        )
        only = paper.model_copy(update={"tables": (made,)})
        return list(sentences(Found({"coqfl": only}, ())))[1]

    two = (79.1, 3, 80.0), (78.9, 3, 80.0)
    assert said(*two).startswith("Of 2 printed accuracies that were measured, 1 are reached")
    elsewhere = said(*two, notes=("At both scales: ten rounds in place of thirty.",))
    assert elsewhere.startswith(
        "Of 2 printed accuracies that were measured (all in another setting than the paper's), 1"
    )
    assert said((79.1, 3, 80.0), (99.0, 2, 80.0)).startswith("Of 1 printed")  # two seeds are too few


# --- sentences follow the results --------------------------------------------------------------------------


def said(*boards: Board) -> list[str]:
    return list(sentences(Found({}, boards)))


def test_the_choice_of_options_has_its_sentence(committed: Found) -> None:
    free = of(committed, "client_trusted")
    one = next(e for e in free.entries if e.method == "dpfedavg" and e.target == 8.0)
    free = board(free, entries=(entry(one, mean=90.1, tuning=None, tried=8),), duels=())
    assert "No epsilon of a board counts the choice" in said(free)[-1]
    secret = tuple(entry(e, tried=None, mean=80.0) for e in free.entries)
    private = board(free, name="private", title="P", entries=secret, searched="drawn")
    lines = said(free, private)
    assert not any(line.startswith("[P]") for line in lines)  # it is told with the choice
    assert lines[-1] == (
        f"Options chosen privately, within epsilon 8: {one.label} has 80.00 ± 0.16 %, and 90.10 ± 0.16 % where the "
        "choice is not counted."
    )
    cost = TuningCost(runs=9, composed=27.0, random=16.5, law="poisson")
    priced = board(free, entries=tuple(entry(e, tuning=cost) for e in free.entries))
    assert said(priced)[-1].endswith("the searches that were carried out would make 8 one of 27 to 27.")


# --- the page around it ------------------------------------------------------------------------------------


def test_what_a_person_wrote_stays() -> None:
    first = with_head("# Mine\n\nBy hand.\n", ["- one"])
    assert first == f"# Mine\n\n{BEGIN}\n\n- one\n{END}\n\nBy hand.\n"
    assert with_head(first, ["- two"]) == f"# Mine\n\n{BEGIN}\n\n- two\n{END}\n\nBy hand.\n"


def test_it_is_written_where_there_are_siblings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = copied(tmp_path / "one", "coqfl")
    assert refresh(one) is None and not (one / "README.md").exists()
    assert main([f"results={one}"]) == 2 and "two studies or more" in capsys.readouterr().err
    both = copied(tmp_path / "both", "coqfl", "leaderboard")
    (both / "README.md").write_text("# Here\n\nMine.\n")
    assert main([f"results={both}"]) == 0
    page = (both / "README.md").read_text()
    assert page.startswith(f"# Here\n\n{BEGIN}") and page.endswith(f"{END}\n\nMine.\n")
    picture = (both / "overview.svg").read_bytes()
    refresh_beside(both)
    assert (both / "README.md").read_text() == page and (both / "overview.svg").read_bytes() == picture
    (both / "coqfl" / "results.json").write_text("{}")
    refresh_beside(both)  # a study's own results do not fall with a neighbour's
    assert "stays as it was" in capsys.readouterr().out and (both / "README.md").read_text() == page


# --- the picture -------------------------------------------------------------------------------------------


def test_the_picture_has_every_boards_lines(committed: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    real = found_plot.save_themed
    monkeypatch.setattr(found_plot, "save_themed", lambda f, *rest: (figures.append(f), real(f, *rest)))
    picture = found_plot.draw(committed.boards, tmp_path)
    (axes,) = figures[0].axes
    drawn = [one for one in axes.containers if isinstance(one, ErrorbarContainer)]
    points = {round(float(y), 6) for one in drawn for y in np.asarray(one[0].get_ydata(), dtype=float)}
    assert picture is not None and axes.get_xscale() == "log"
    for one in committed.boards:
        for target in {e.target for e in one.entries}:
            here = [e for e in one.entries if e.target == target]
            top = max(e.accuracy.mean or 0.0 for e in here)
            first = [e.label for e in here if e.accuracy.mean == top]  # several where they are equal
            if target == max(e.target for e in one.entries):
                assert any(f"{label} {top:.1f} % at {target:g}" in picture.alt for label in first)
            plain = [e.accuracy.mean or 0.0 for e in here if e.idea == "plain"]
            own = [e.accuracy.mean or 0.0 for e in here if e.method.startswith("fedonce")]
            wanted = {top} | ({max(plain)} if plain else set()) | ({max(own)} if own else set())
            assert {round(mean, 6) for mean in wanted} <= points
    of_boards = figures[0].legends[0].get_lines()[: len(committed.boards)]
    assert len({line.get_color() for line in of_boards}) == len(committed.boards)  # lines of one colour are comparable
    texts = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert all(
        re.search(rf"{re.escape(one.title)}: .+ \(observer: ", "".join(texts))
        for one in committed.boards
        if one.entries
    )
    drawn_svg = (tmp_path / picture.file).read_text()
    style, _, body = drawn_svg.partition("</style>")
    colours = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", body))
    assert "prefers-color-scheme: dark" in style and colours
    assert all(f': {colour}"]' in style for colour in colours)  # each has its own on a dark page
    assert found_plot.draw([], tmp_path) is None
