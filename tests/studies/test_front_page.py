"""The head of a folder of studies: its sentences are those that the results give, and stay true when they change."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from fedpriv.studies import found_plot
from fedpriv.studies.front_page import BEGIN, END, main, refresh, refresh_beside, with_head
from fedpriv.studies.results import Board, Entry, Estimate, TuningCost
from fedpriv.studies.what_was_found import Found, read, sentences, words

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
    assert head.strip().split("\n") == [*words(committed), f"![{picture.alt}]({picture.file})", "", picture.caption]
    assert (RESULTS / picture.file).is_file() and (RESULTS / "overview.png").is_file()
    assert sum(line.startswith("- ") for line in head.split("\n")) == 11


def test_totals_are_those_of_the_papers_pages(committed: Found) -> None:
    """By other code: from the JSON itself."""
    claims = [json.loads((RESULTS / name / "results.json").read_text())["claims"] for name in committed.papers]
    every = [claim["verdict"] for paper in claims for claim in paper]
    first = next(sentences(committed))
    assert first.startswith(f"Of {len(every)} claims of {len(claims)} papers, {every.count('holds')} hold, ")
    assert f"{every.count('not decided')} are not decided" in first
    rows = [line for line in words(committed) if line.startswith("| [")]
    for row, paper, own in zip(rows, committed.papers, claims, strict=True):
        numbers = [int(cell) for cell in row.split("|")[2:7]]
        given = [claim["verdict"] for claim in own]
        assert f"]({paper}/README.md)" in row and numbers[0] == len(given) == sum(numbers[1:])
        assert numbers[1] == given.count("holds") and numbers[2] == given.count("does not hold")


TITLE = "[T](leaderboard/nobody_trusted.md)"


# --- sentences follow the results --------------------------------------------------------------------------


def said(*boards: Board) -> list[str]:
    return list(sentences(Found({}, boards)))


def test_a_boards_sentence_is_of_its_best_at_the_target_nearest_to_eight(committed: Found) -> None:
    one = next(e for e in of(committed, "client_server").entries if e.idea == "plain")
    entries = (
        entry(one, target=5.0, method="a", label="A", mean=70.0, rank=2, tied=True),
        entry(one, target=5.0, method="b", label="B", mean=71.0, rank=1, tied=True, idea="paper"),
        entry(one, target=5.0, method="c", label="C", mean=50.0, rank=3, tied=False),
        entry(one, target=14.0, method="a", label="A", mean=99.0, rank=1, tied=False),
    )
    made = board(
        of(committed, "client_server"), title="T", entries=entries, duels=(), reference=estimate(92.0), alone=None
    )
    (first, *_) = said(made)
    assert first == (
        f"{TITLE}, epsilon 5: B is best with 71.0 ± 0.2 % (tied with A); the best plain method, A, has 70.0 ± 0.2 %; "
        "without privacy 92.0 ± 0.2 %."
    )
    better = board(made, entries=(*entries, entry(entries[0], method="d", label="D", mean=80.0, tied=False, rank=1)))
    assert said(better)[0].startswith(
        f"{TITLE}, epsilon 5: D is best with 80.0 ± 0.2 % (tied with A; B), a plain method;"
    )
    comma = board(made, entries=tuple(entry(e, label=f"{e.label}, local") for e in entries))
    assert ": B, local, is best with" in said(comma)[0]
    worse = board(made, entries=tuple(entry(e, mean=12.0, superseded="why") for e in entries), chance=10.0)
    assert said(worse)[0].endswith("Nothing learns: guessing gives 10 %.") and "12.0 ± 0.2 % †" in said(worse)[0]
    assert ", every client by itself 88.0 ± 0.2 %." in said(board(made, alone=estimate(88.0)))[0]


def test_the_best_with_the_boards_plan_stands_beside_one_with_its_own(committed: Found) -> None:
    one = next(e for e in of(committed, "client_server").entries if e.idea == "plain")
    same = entry(one, target=8.0, method="a", label="A", mean=70.0, rank=2, tied=True, own_plan=False)
    apart = entry(one, target=8.0, method="b", label="B", mean=71.0, rank=1, tied=True, own_plan=True, idea="rival")
    made = board(of(committed, "client_server"), title="T", entries=(same, apart), duels=(), alone=None)
    (first, *_) = said(made)
    rival = entry(same, method="c", label="C", mean=70.5, idea="rival", tied=False)
    assert first.startswith(
        f"{TITLE}, epsilon 8: B is best with 71.0 ± 0.2 % (tied with A); the best plain method, A, has 70.0"
    )
    assert "plan of who" not in first  # A is that, too
    both = said(board(made, entries=(same, rival, apart)))[0]
    assert "; with the board's plan of who takes part when, C has 70.5 ± 0.2 %" in both
    worse = board(made, entries=(same, rival, entry(apart, mean=60.0, rank=3)))
    assert said(worse)[0].startswith(f"{TITLE}, epsilon 8: C is best with 70.5") and "plan of who" not in said(worse)[0]


def test_claims_are_counted_by_what_they_are_about(committed: Found) -> None:
    first = next(sentences(committed))
    claims = [claim for paper in committed.papers.values() for claim in paper.claims]
    numbers = {basis: sum(claim.basis == basis for claim in claims) for basis in ("runs", "computed", "printed")}
    found = re.search(r"By subject: (\d+) on accuracy .*?; (\d+) on prices, .*?; (\d+) on a paper's words", first)
    assert found is not None and list(map(int, found.groups())) == list(numbers.values())
    printed = [claim for claim in claims if claim.basis == "printed"]
    assert printed and all(claim.words.startswith("Of the printed figures") and claim.p is None for claim in printed)


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
        f"Options chosen privately, within epsilon 8: {one.label} has 80.0 ± 0.2 %, and 90.1 ± 0.2 % where the choice "
        "is not counted."
    )
    cost = TuningCost(runs=9, composed=27.0, random=16.5, law="poisson")
    priced = board(free, entries=tuple(entry(e, tuning=cost) for e in free.entries))
    assert said(priced)[-1].startswith("A search on the protected data makes epsilon 8 one of 16.5 to 16.5")


def test_a_paper_without_infinite_epsilons_is_not_accused(committed: Found) -> None:
    paper = committed.papers["adpfl"]
    assert "In 1 of 1 papers something printed" in "".join(sentences(Found({"adpfl": paper}, ())))
    finite = paper.model_copy(update={"tables": tuple(t for t in paper.tables if t.name != "epsilon")})
    assert "something printed" not in "".join(sentences(Found({"adpfl": finite}, ())))
    trusted = sentences(Found({}, tuple(board(one, entries=(), duels=()) for one in committed.boards)))
    assert "is best" not in "".join(trusted)


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
    texts = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert all(f"{one.title} (observer: " in "".join(texts) for one in committed.boards if one.entries)
    drawn_svg = (tmp_path / picture.file).read_text()
    style, _, body = drawn_svg.partition("</style>")
    colours = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", body))
    assert "prefers-color-scheme: dark" in style and colours
    assert all(f': {colour}"]' in style for colour in colours)  # each has its own on a dark page
    assert found_plot.draw([], tmp_path) is None
