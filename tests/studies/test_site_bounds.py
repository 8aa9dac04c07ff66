"""The site stays small: bounds on its pages and bytes, which runs have a page, pictures in both schemes."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape
from PIL import Image
from site_results import make_results

from fedpriv.report.pictures import DARK, PAPER
from fedpriv.site import main
from fedpriv.studies.results import RESULTS_FILE, RUNS_FILE, Leaderboard, read_results
from fedpriv.studies.site import pages
from fedpriv.studies.site import run_choice as choice
from fedpriv.studies.site.inputs import LEADERBOARD, Results, read_all
from fedpriv.studies.site.site_pictures import on_dark
from fedpriv.studies.site.wording import slug

COMMITTED = Path(__file__).resolve().parents[2] / "docs" / "results"


def build(results: Path, out: Path) -> Path:
    assert main([f"results={results}", f"out={out}"]) == 0
    return out


def size(site: Path) -> tuple[int, int]:
    """(pages, bytes of all files)."""
    files = [file for file in site.rglob("*") if file.is_file()]
    return sum(file.suffix == ".html" for file in files), sum(file.stat().st_size for file in files)


def runs_of(found: Results) -> int:
    return sum(len(study.runs) for study in found.studies())


def lines(site: Path, study: str) -> set[str]:
    """The runs that the list of a study names."""
    return set(re.findall(r'<span id="([^"]+)">', (site / "runs" / study / "index.html").read_text()))


def with_page(site: Path, study: str) -> set[str]:
    return {file.stem for file in (site / "runs" / study).iterdir()} - {"index"}


def three_times(source: Path, target: Path) -> None:
    """The committed results with three times as many runs: a run of a cell or an entry has two more seeds; one of a
    search has two more trials; and every entry of a board has a rival with runs of its own.
    """
    for folder in sorted(file.parent for file in source.glob(f"*/{RESULTS_FILE}")):
        new = target / folder.name
        new.mkdir(parents=True)
        shutil.copytree(folder / "figures", new / "figures")
        results = json.loads((folder / RESULTS_FILE).read_text())
        runs = [json.loads(line) for line in (folder / RUNS_FILE).read_text().splitlines()]
        shown = {run for board in results.get("boards", ()) for entry in board["entries"] for run in entry["runs"]}
        of_paper = folder.name != LEADERBOARD
        more = [
            again(run, seed if of_paper or run["name"] in shown else 0, trial)
            for run in runs
            for trial, seed in ((0, 0), (1, 100), (2, 200))
        ]
        names = {run["name"] for run in more}
        for board in results.get("boards", ()):
            rivals = json.loads(json.dumps(board["entries"]))
            for rival in rivals:
                rival["rank"] += len(board["entries"])
                rival["runs"] = [again({"name": name}, 0, 3)["name"] for name in rival["runs"]]
            board["entries"] += rivals
        more += [again(run, 0, 3) for run in runs if run["name"] in shown]
        holders = [entry for board in results.get("boards", ()) for entry in board["entries"]]
        holders += [cell for table in results.get("tables", ()) for row in table["rows"] for cell in row["cells"]]
        for one in holders:
            one["runs"] += [name for run in one["runs"] for s in (100, 200) if (name := seeded(run, s)) in names]
        (new / RESULTS_FILE).write_text(json.dumps(results))
        (new / RUNS_FILE).write_text("".join(json.dumps(run) + "\n" for run in more))


def seeded(name: str, step: int) -> str:
    return re.sub(r"-s(\d+)$", lambda found: f"-s{int(found[1]) + step}", name)


def again(run: dict[str, Any], step: int, trial: int) -> dict[str, Any]:
    """A run with another seed, or (step 0, trial > 0) with another digest and another option."""
    if trial == 0:
        return run
    if step:
        name, seed = seeded(run["name"], step), run["seed"] + step
        if name != run["name"]:
            command = re.sub(r"seed=\d+$", f"seed={seed}", run["command"])
            return run | {"name": name, "seed": seed, "command": command}
    name = re.sub(r"-(\w{9})\w(-s\d+)?$", rf"-\1{'ghijk'[trial]}\2", run["name"])
    command = run.get("command", "").replace(" privacy.delta", f" strategy.server.lr=1.{trial} privacy.delta")
    return run | {"name": name, "command": command} if "command" in run else {"name": name}


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(COMMITTED, tmp_path_factory.mktemp("committed") / "site")


@pytest.mark.parametrize("more", [False, True], ids=["committed", "three times as many runs"])
def test_the_site_is_small_whatever_is_run(committed: Path, tmp_path: Path, more: bool) -> None:
    source, site, known = COMMITTED, committed, runs_of(read_all(COMMITTED))
    if more:
        three_times(COMMITTED, source := tmp_path / "results")
        site = build(source, tmp_path / "site")
    count, taken = size(site)
    assert count <= 300 and taken <= 5_000_000, (count, taken)
    found = read_all(source)
    assert runs_of(found) >= (3 * known if more else known)
    asked = choice.runs_in_order(found)
    for study in found.studies():
        page = (site / "runs" / study.name / "index.html").read_text()
        shown = set(study.runs)
        if study.name == LEADERBOARD:
            assert found.leaderboard
            boards = found.leaderboard.results.boards
            shown = {run for board in boards for entry in board.entries for run in entry.runs}
            further = len(study.runs) - len(shown)
            assert further > 100 and f"{further:,} further runs of this study" in page
        assert lines(site, study.name) == shown
        mine = {name for folder, name in asked if folder == study.name}
        told = with_page(site, study.name)
        assert told <= mine and f"{len(told)} runs of this list have a page" in page
        left = f"{len(mine - told)} more had no room" if mine > told else "none was left out for room"
        assert left in page
    assert found.leaderboard
    for board in found.leaderboard.results.boards:
        for entry in board.entries:
            if entry.rank <= (1 if more else choice.BEST_RANKS):  # of three times as many the best alone have room
                assert entry.runs[0] in with_page(site, LEADERBOARD), (board.name, entry.method)


def test_a_line_of_the_list_says_how_a_run_is_repeated_and_what_it_reached(committed: Path) -> None:
    """Every run that the committed leaderboard shows: the setting's words, its row's, and the seed give its command."""
    page = (committed / "runs" / LEADERBOARD / "index.html").read_text()
    results, runs = read_results(COMMITTED / LEADERBOARD, Leaderboard)
    by_name = {run.name: run for run in runs}
    shown = {run for board in results.boards for entry in board.entries for run in entry.runs}
    seen = 0
    for section in page.split("<h2 id=")[1:]:
        setting = re.search(r"<pre[^>]*>([^<]+)</pre>", section)
        assert setting
        for row in re.findall(r'<tr><th scope="row">(.+?)</th>(.+?)</tr>', section, re.S):
            told = re.findall(r'<span id="([^"]+)">(?:<a [^>]+>)?\1(?:</a>)?(?: <i>([\d.]+)</i>)?', row[0])
            options = re.findall(r"<td>([^<]*)</td>", row[1])
            for name, own in told:
                run = by_name[name]
                assert run.command == f"{setting[1]} {options[-1]} seed={run.seed}" and name.endswith(f"-s{run.seed}")
                assert (own or options[0]) == f"{100 * run.summary['accuracy']['final']:.1f}"
                seen += 1
    assert seen == len(shown)


def test_the_front_page_begins_with_what_the_folders_page_says_was_found(committed: Path) -> None:
    readme = (COMMITTED / "README.md").read_text(encoding="utf-8")
    head = readme.partition("<!-- found: begin")[2].partition("<!-- found: end")[0]
    said = re.findall("^- (.+)$", head, re.MULTILINE)
    page = (committed / "index.html").read_text(encoding="utf-8")
    found = re.search(r'<h2 id="found">.*?<ul class="found">(.*?)</ul>(.*?)</section>', page, re.DOTALL)
    assert said and found and page.index("<h2") == page.index('<h2 id="found">')
    assert [unescape(one) for one in re.findall("<li>(.+?)</li>", found[1])] == said
    alt, caption = re.findall(r"!\[(.+)\]\(overview\.svg\)\n\n(.+)", head)[0]
    assert f'alt="{escape(alt)}"' in page and f"<figcaption>{escape(caption)}</figcaption>" in found[2]
    assert (committed / "figures" / "all" / "overview-dark.png").is_file()


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_results(tmp_path_factory.mktemp("made-up") / "results")


def test_best_entries_come_first_then_rows_then_other_entries_then_other_cells(made_up: Path) -> None:
    found = read_all(made_up)
    assert found.leaderboard
    boards = found.leaderboard.results.boards
    entries = [
        entry.model_copy(update={"runs": (f"final-{place}",), "rank": rank})
        for place, (entry, rank) in enumerate(zip(boards[0].entries, (4, 2, 5), strict=False))
    ]
    one = boards[0].model_copy(update={"entries": tuple(entries)})
    board = found.leaderboard.results.model_copy(update={"boards": (one,)})
    paper = found.papers[0]
    table = paper.results.tables[0]
    cells = [table.rows[0].cells[1].model_copy(update={"runs": names}) for names in (("fedcad-s1",), ("fedcad-s2",))]
    row = table.rows[0].model_copy(update={"cells": tuple(cells)})
    tables = (table.model_copy(update={"rows": (row,)}),)
    source = Results(
        (type(paper)(paper.name, paper.folder, paper.results.model_copy(update={"tables": tables}), paper.runs),),
        type(found.leaderboard)(LEADERBOARD, found.leaderboard.folder, board, found.leaderboard.runs),
    )
    assert choice.runs_in_order(source) == [
        (LEADERBOARD, "final-1"),
        ("fedcad", "fedcad-s1"),
        (LEADERBOARD, "final-0"),
        (LEADERBOARD, "final-2"),
        ("fedcad", "fedcad-s2"),
    ]


@pytest.mark.parametrize("bound", ["MOST_PAGES", "MOST_BYTES"])
def test_what_has_no_room_keeps_its_line(
    made_up: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    whole = build(made_up, tmp_path / "whole")
    asked = choice.runs_in_order(read_all(made_up))
    count, taken = size(whole)
    assert count == 1 + 5 + 1 + 6 + len(asked)
    limit = {"MOST_PAGES": count - 3, "MOST_BYTES": taken - 3000}[bound]
    monkeypatch.setattr(pages, bound, limit)
    less = build(made_up, tmp_path / "less")
    assert size(less)[bound == "MOST_BYTES"] <= limit
    kept = {(study.name, name) for study in read_all(made_up).studies() for name in with_page(less, study.name)}
    there = [(study, slug(name)) in kept for study, name in asked]
    assert there == sorted(there, reverse=True) and not all(there)  # those that come last went first
    last = asked[-1]
    assert "more had no room" in (less / "runs" / last[0] / "index.html").read_text()
    for page in less.rglob("*.html"):
        for link in re.findall(r'href="([^"#:]+\.html)', page.read_text()):
            assert (page.parent / link).is_file(), (page, link)


# --- pictures --------------------------------------------------------------------------------------------


def rgb(color: str) -> tuple[int, ...]:
    return tuple(int(color[i : i + 2], 16) for i in (1, 3, 5))


@pytest.mark.parametrize("share", [1.0, 0.5, 0.14])
@pytest.mark.parametrize("light", sorted(set(DARK) - {PAPER}))
def test_a_line_its_edge_and_its_band_keep_their_share_on_dark(light: str, share: float) -> None:
    """A colour over white becomes the dark page's colour over its paper; greys may be taken for one another."""
    mixed = [255 + share * (part - 255) for part in rgb(light)]
    wanted = [a + share * (b - a) for a, b in zip(rgb(DARK[PAPER]), rgb(DARK[light]), strict=True)]
    assert max(abs(a - b) for a, b in zip(on_dark(mixed), wanted, strict=True)) <= 24
    assert on_dark((255, 255, 255)) == rgb(DARK[PAPER])


def test_pictures_are_small_and_there_for_both_schemes(committed: Path, made_up: Path, tmp_path: Path) -> None:
    site = build(made_up, tmp_path / "site")
    light = next(file for file in (site / "figures" / "fedcad").iterdir() if file.stem.startswith("figures-accuracy"))
    dark = light.with_name(f"{light.stem}-dark.png")
    first, second = (Image.open(file) for file in (light, dark))
    assert first.mode == second.mode == "P" and first.size == second.size == (640, 400)
    paper = sum(first.convert("RGB").getpixel((5, 5))) - sum(second.convert("RGB").getpixel((5, 5)))
    assert paper > 400  # what was nearly white is nearly black
    whole = sum(file.stat().st_size for file in COMMITTED.rglob("*.png"))
    assert sum(file.stat().st_size for file in (committed / "figures").rglob("*.png")) < 0.7 * whole


def test_a_run_and_a_cell_name_eight_seeds_at_most_and_say_how_many_there_are(committed: Path) -> None:
    pages = [file.read_text() for file in (committed / "runs" / "coqfl").glob("train-*.html")]
    many = [page for page in pages if "seeds in all; the others are in" in page]
    assert many
    for page in many:
        table = page.partition('<h2 id="seeds">')[2].partition("</table>")[0]
        assert 8 <= table.count('<th scope="row">') <= 9
    links = re.findall(r'<span class="runs">.*?</span>', (committed / "papers" / "coqfl.html").read_text(), re.DOTALL)
    assert max(one.count("<a ") for one in links) == 8 and any("and 32 more" in one for one in links)
