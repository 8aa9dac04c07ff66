"""A paper's experiments end to end, on a paper made up for the digits; and the five papers' own files."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up import DIGITS, PAPER, with_paper
from processes import wait_until

from fedpriv.attacks.release_audit import audit_config
from fedpriv.commands import reproduce
from fedpriv.common.files import locked
from fedpriv.config.compose import compose
from fedpriv.config.methods import METHODS
from fedpriv.report.words import figure
from fedpriv.studies import jobs, pages, papers
from fedpriv.studies.reproduction import measured
from fedpriv.studies.results import PaperResults, RunRecord, read_runs, read_study
from tools import mark_results

PAPERS = ["adpfl", "agn", "coqfl", "fedags", "fedcad"]


def call(folder: Path, *options: str) -> int:
    return reproduce.main(["paper=made_up", "workers=1", f"out={folder / 'out'}", f"data={folder}", *options])


def results_of(folder: Path) -> PaperResults:
    return read_study(folder / "out" / "made_up", PaperResults)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the made-up paper's results."""
    folder = tmp_path_factory.mktemp("reproduced")
    with pytest.MonkeyPatch.context() as patch:
        with_paper(folder, patch)
        assert call(folder) == 0
    return folder / "out" / "made_up"


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the training runs that are made."""
    done: list[str] = []
    real = jobs.WORK["train"]
    monkeypatch.setitem(jobs.WORK, "train", lambda job, path: done.append(job.name) or real(job, path))
    return done


def test_tables_verdicts_and_figures_are_written(reproduced: Path) -> None:
    results, runs = read_study(reproduced, PaperResults), read_runs(reproduced)
    little, much = results.tables[0].rows
    assert little.cells[0].measured is not None and much.cells[0].measured is not None
    assert little.cells[0].measured.n == 2
    assert (little.cells[0].measured.mean or 0) > (much.cells[0].measured.mean or 0) + 20
    assert little.cells[0].reported == 30.0 and set(little.cells[0].runs) <= {run.name for run in runs}
    (order,) = results.tables[0].orderings
    assert (order.agreeing, order.contradicted, order.open) == (0, 1, 0)
    verdicts = {claim.name: claim for claim in results.claims}
    assert verdicts["right"].verdict == "holds" and verdicts["wrong"].verdict == "does not hold"
    assert verdicts["private"].verdict == "does not hold" and "∞" in verdicts["private"].words
    assert verdicts["repaired"].verdict == "holds"
    assert verdicts["pictures"].verdict == "cannot be tested here" and "mnist" in verdicts["pictures"].words
    assert verdicts["pictures"].needs == "pictures that are not here" and not verdicts["right"].needs
    epsilon = {run.name: run.summary["privacy"]["verified_epsilon"] for run in runs if run.kind == "train"}
    prices = " against ".join(figure(epsilon[row.cells[0].runs[0]]) for row in (little, much))
    assert f"Not at equal privacy: the runs' verified ε is {prices}." in verdicts["right"].words
    assert {drawn.name for drawn in results.figures} == {"curves", "norms"}
    assert all((reproduced / drawn.file).read_bytes().startswith(b"<?xml") for drawn in results.figures)
    with (reproduced / "tables" / "noise.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["row"] for row in rows] == ["little noise", "much noise"] and rows[0]["seeds"] == "2"
    readme, page = ((reproduced / name).read_text() for name in ("README.md", "details.md"))
    assert {"README.md": readme, "details.md": page} == pages.paper_pages(results)
    assert "A leak | with a bar." in readme and "![Curves:" in readme
    assert "| It is private | **does not hold** | " in readme
    assert "| It is private | Theorem 1 | **does not hold** |" in page
    assert "- Order of the rows in accuracy: of 1 pairs 0 are as reported, 1 the other way round" in page
    assert "Theorem 1. Computed." in page and "\n- Other pictures (Table 2): " in page
    assert "half width of the 95 % interval over 2 seeds; in brackets what the paper reports." in page


def test_the_setting_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What scale=small leaves out stands with the table and with every verdict that rests on it."""
    changed = json.loads(json.dumps(PAPER))
    changed["tables"]["noise"] |= {"small_differs": "2 rounds in place of 200", "differs": "ours"}
    changed["claims"]["private"]["beside"] = ["epsilon/repaired/run"]
    changed["case"] = ["It has {noise/little/final}, {noise/little/final - noise/much/final} more, {printed} printed."]
    with_paper(tmp_path, monkeypatch, **changed)
    assert call(tmp_path, "seeds=2") == 0
    results = results_of(tmp_path)
    claims = {claim.name: claim for claim in results.claims}
    assert claims["wrong"].setting == "ours; 2 rounds in place of 200" and claims["wrong"].place == "another"
    assert claims["private"].setting == claims["pictures"].setting == "" and claims["private"].place == "own"
    assert "repaired: " in claims["private"].words
    assert results.tables[0].notes == ("At both scales: ours.", "At scale=small: 2 rounds in place of 200.")
    readme, page = ((tmp_path / "out" / "made_up" / name).read_text() for name in ("README.md", "details.md"))
    assert "`python -m fedpriv.reproduce paper=made_up scale=small seeds=2`" in readme
    row = next(line for line in page.split("\n") if line.startswith("| Much noise is better"))
    assert row.endswith(" ¹ ² |") and "Corrected p" in row
    assert page.count("¹ Not the paper's setting: ours.") == page.count("² Not the paper's setting: 2 rounds in") == 1
    little, gap = (readme.partition("It has ")[2].split(", ")[place] for place in (0, 1))
    assert little.endswith(" %") and gap.startswith("+") and gap.endswith(" points more") and ", 0 printed." in readme


SEARCH = {
    "search": {
        "title": "Search", "source": "ours", "held": 300,
        "options": [*DIGITS, "strategy=fedldp", "strategy.client.noise_multiplier=0.001"],
        "rows": {"fedldp": {"label": "Fed-LDP"}},
        "columns": {
            "far": {"label": "a millionth", "options": ["local.lr=1e-6"]},
            "near": {"label": "a tenth", "options": ["local.lr=0.1"]},
        },
    },
    "chosen": {
        "title": "Chosen", "source": "ours", "options": [*DIGITS, "strategy=fedldp"],
        "rows": {"own": {"label": "own best", "best_of": "search/fedldp"}},
        "columns": {"final": {"label": "accuracy"}},
    },
}  # fmt: skip


def test_an_option_is_chosen_by_pictures_that_nothing_else_is_tested_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_paper(tmp_path, monkeypatch, tables=SEARCH, figures={}, claims={})
    assert call(tmp_path) == 0
    search, chosen = results_of(tmp_path).tables
    assert "kept from training; one seed. Chosen: Fed-LDP: a tenth." in search.notes[0]
    by_name = {run.name: run for run in read_runs(tmp_path / "out" / "made_up")}
    tried = [by_name[cell.runs[0]] for cell in search.rows[0].cells]
    assert {run.seed for run in tried} == {1000}
    assert all("dataset.split=tuning-digits-300-1000.npz" in run.options for run in tried)
    final = [by_name[name] for name in chosen.rows[0].cells[0].runs]
    assert [run.seed for run in final] == [0, 1] and all("local.lr=0.1" in run.options for run in final)
    assert not any("dataset.split" in option for run in final for option in run.options)


def test_two_calls_into_one_folder_do_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_paper(tmp_path, monkeypatch)
    with locked(tmp_path / "out" / "made_up" / "runs"):
        assert call(tmp_path) != 0
    assert "another run is writing into this folder" in capsys.readouterr().err


STOPS = """
import sys, time
from pathlib import Path
from fedpriv.commands import reproduce
from fedpriv.studies import jobs, papers
papers.FOLDER, real, done = Path(sys.argv[1]), jobs.WORK["train"], []
jobs.WORK["train"] = lambda job, path: (done.append(job), len(done) > 2 and time.sleep(600), real(job, path))[2]
reproduce.main(sys.argv[2:])
"""


def test_a_study_that_was_killed_ends_as_one_that_was_not(
    reproduced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[str]
) -> None:
    """kill -9 in its third training run: the next call makes this one and the fourth, and nothing twice."""
    with_paper(tmp_path, monkeypatch)
    out = tmp_path / "out" / "made_up"
    options = ["paper=made_up", "workers=1", f"out={out.parent}", f"data={tmp_path}"]
    killed = subprocess.Popen([sys.executable, "-c", STOPS, str(tmp_path / "papers"), *options], cwd=Path.cwd())
    try:
        wait_until(lambda: len(list(out.glob("runs/train-*/record.json"))) == 2)
    finally:
        killed.kill()
        killed.wait()
    assert not (out / "results.json").exists() and call(tmp_path) == 0 and len(trained) == 2
    again, whole = results_of(tmp_path), read_study(reproduced, PaperResults)
    assert again.tables == whole.tables and again.claims == whole.claims


def test_a_second_call_runs_nothing_and_more_seeds_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A look adds the next block to every cell, and what is there counts whoever asked for it."""
    with_paper(tmp_path, monkeypatch, seeds={"small": [1, 3], "literal": 3})
    assert call(tmp_path, "plan=true") == 0 and "made_up: 4 runs, 4 of them to be made" in capsys.readouterr().out
    assert call(tmp_path) == 0 and len(trained) == 2
    trained.clear()
    assert call(tmp_path) == 0 and trained == []
    assert call(tmp_path, "look=2") == 0 and len(trained) == 4 and {name[-2:] for name in trained} == {"s1", "s2"}
    table = results_of(tmp_path).tables[0]
    assert table.notes == ("Looked at after 1 and 3 seeds, of 1 and 3 that were planned.",)
    assert table.rows[0].cells[0].measured is not None and table.rows[0].cells[0].measured.n == 3
    trained.clear()
    capsys.readouterr()
    assert call(tmp_path, "plan=true", "look=2") == 0 and "made_up: 8 runs, 0 of them" in capsys.readouterr().out
    assert (
        call(tmp_path) == 0 and trained == [] and results_of(tmp_path).tables[0] == table
    )  # at the look that is there


def test_a_job_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = json.loads(json.dumps(PAPER))
    changed["tables"]["noise"]["rows"]["much"]["options"] += ["local.sampler=poisson", "local.batch_size=900"]
    with_paper(tmp_path, monkeypatch, tables=changed["tables"], claims={"right": PAPER["claims"]["right"]})
    assert call(tmp_path, "seeds=1") == 1
    captured = capsys.readouterr()
    assert "1 runs failed" in captured.err and "local.batch_size=900" in captured.err
    results = results_of(tmp_path)
    assert results.tables[0].rows[0].cells[0].measured is not None
    assert "refused: local.batch_size=900" in str(results.tables[0].rows[1].cells[0].missing)
    assert results.claims[0].verdict == "cannot be tested here"


def test_a_look_that_fails_is_named_and_the_one_before_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = jobs.WORK["train"]
    monkeypatch.setitem(jobs.WORK, "train", lambda job, path: real(job, path) if job.seed < 1 else {}[job.seed])
    with_paper(tmp_path, monkeypatch, seeds={"small": [1, 2], "literal": 3})
    assert call(tmp_path, "look=2") == 1 and "2 runs failed" in capsys.readouterr().err
    assert results_of(tmp_path).tables[0].rows[0].cells[0].measured.n == 1  # type: ignore[union-attr]


def test_one_table_is_made_with_the_claims_that_rest_on_it_alone(
    reproduced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_paper(tmp_path, monkeypatch)
    whole = tmp_path / "out" / "made_up"
    whole.mkdir(parents=True)
    shutil.copyfile(reproduced / "runs.parquet", whole / "runs.parquet")
    assert call(tmp_path, "table=noise", "plan=true") == 0
    assert "made_up: 4 runs, 0 of them to be made" in capsys.readouterr().out  # those of the whole paper count
    assert call(tmp_path, "table=noise") == 0
    results = read_study(whole / "noise", PaperResults)
    assert [table.name for table in results.tables] == ["noise"] and len(read_runs(whole / "noise")) == 4
    assert {claim.name for claim in results.claims} == {"right", "wrong"}
    assert not (whole / "README.md").exists() and not (tmp_path / "out" / "README.md").exists()


def test_fresh_seeds_are_made_where_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict that the list before had differently is open without them; where they say otherwise no further seeds of
    its own table would help.
    """
    changed = json.loads(json.dumps(PAPER)) | {"seeds": {"small": [2, 4, 8], "literal": 3}}
    fresh = changed["tables"]["noise"] | {"first_seed": 100, "title": "Fresh", "seeds": 4}
    options = {row: {"options": line["options"]} for row, line in fresh["rows"].items()}
    rows = {row: fresh["rows"][row] | options[other] for row, other in (("little", "much"), ("much", "little"))}
    changed["tables"] |= {"fresh": fresh, "contrary": fresh | {"title": "Contrary", "rows": rows}}
    changed["claims"]["right"] |= {"before": "not decided", "confirm": {"noise": "fresh"}}
    changed["claims"]["unsure"] = changed["claims"]["right"] | {"confirm": {"noise": "contrary"}}
    with_paper(tmp_path, monkeypatch, **changed)
    assert call(tmp_path, "seeds=4") == 0
    results = results_of(tmp_path)
    assert results.claims[0].verdict == "not decided" and results.tables[-1].rows[0].cells[0].runs == ()
    assert {results.claims[place].needs for place in (0, -1)} == {"seeds that its plan still has"}
    assert results.tables[-1].rows[0].cells[0].missing == "fresh seeds are run with fresh=true"
    assert call(tmp_path, "seeds=4", "fresh=true") == 0
    results = results_of(tmp_path)
    assert results.claims[0].verdict == "holds" and results.claims[-1].verdict == "not decided"
    assert "fresh seeds do not confirm" in results.claims[-1].words
    assert results.claims[-1].needs == "more seeds than its plan has"
    assert {name.rpartition("-s")[2] for name in results.tables[-1].rows[0].cells[0].runs} == {
        "100",
        "101",
        "102",
        "103",
    }
    assert call(tmp_path, "seeds=4") == 0 and results_of(tmp_path).claims == results.claims  # they count once there


def test_a_fresh_checkout_goes_on_from_the_rows_of_a_study(
    reproduced: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trained: list[str]
) -> None:
    """With the jobs' own folders gone nothing is run again but what is marked, and the mark is gone then."""
    with_paper(tmp_path, monkeypatch)
    out = tmp_path / "out" / "made_up"
    shutil.copytree(reproduced, out, ignore=shutil.ignore_patterns("runs"))
    assert call(tmp_path) == 0 and trained == []
    assert read_runs(out) == read_runs(reproduced)

    assert mark_results.main(["strategy=fedprox", "reason=x", f"results={out.parent}"]) == 2
    assert mark_results.main(["strategy=fedcad", "reason=x", f"results={out.parent}"]) == 0
    assert "to be made anew" not in (out / "details.md").read_text()  # its plans are of another kind
    assert mark_results.main(["strategy=fedldp", "reason=its noise changed", f"results={out.parent}"]) == 0
    results, marked = results_of(tmp_path), read_runs(out)
    assert all((run.superseded is not None) == (run.kind == "train") for run in marked)
    cells = {table.name: table.rows[0].cells[0] for table in results.tables}
    assert cells["noise"].superseded == "its noise changed" and cells["epsilon"].superseded is None
    readme, page = ((out / name).read_text() for name in ("README.md", "details.md"))
    assert "- †: to be made anew: its noise changed" in page and "to be made anew: 4 of fedldp" in page
    assert {"README.md": readme, "details.md": page} == pages.paper_pages(results) and "to be made anew (†" in readme

    assert call(tmp_path, "run=false") == 0 and trained == []
    assert call(tmp_path) == 0
    assert sorted(trained) == sorted(run.name for run in marked if run.kind == "train")
    again = read_runs(out)
    assert all(run.superseded is None for run in again) and "†" not in (out / "details.md").read_text()
    figures = [run.summary["accuracy"] for run in again if run.kind == "train"]
    assert figures == [run.summary["accuracy"] for run in marked if run.kind == "train"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["paper=nothing"], "paper=nothing: allowed: adpfl, agn, coqfl, fedags, fedcad, all"),
        (["paper=fedcad", "scale=big"], "scale=big: allowed: small, literal"),
        (["paper=fedcad", "workers=-1"], "workers=-1: must be a whole number from 0 to 1024"),
        (["paper=fedcad", "seeds=0"], "seeds=0: must be a whole number from 1 to 100"),
        (["paper=fedcad", "look=6"], "look=6: must be a whole number from 1 to 5"),
        (["paper=fedcad", "download=yes"], "download=yes: allowed: true, false"),
        (["paper=fedcad", "size=1"], "size=1: no such option; allowed: paper, scale, data"),
        (["scale=small"], "paper: is missing"),
        (["paper=agn", "table=gama"], "table=gama: agn has search_sgd, search_adam"),
        (["paper=all", "table=gamma"], "table=gamma: it is one paper's: paper=NAME table=..."),
    ],
)
def test_a_wrong_option_is_named(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def noise(paper: dict[str, Any]) -> dict[str, Any]:
    return paper["tables"]["noise"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: noise(p).update(measure="speed"), "no such measure: speed; allowed: accuracy"),
        (lambda p: noise(p)["reported"].update(x={"final": 1}), "no such row and column: x, final"),
        (lambda p: p["figures"]["curves"].update(table="x"), "figures.curves: no such table: x"),
        (lambda p: p["figures"]["curves"].update(rows=["y"]), "figures.curves: no such row: y"),
        (lambda p: p["figures"]["curves"].update(against={"much": "little"}, ylog=True), "have no logarithm"),
        (lambda p: noise(p).update(colour="red"), "colour"),
        (lambda p: noise(p).update(seeds=[3, 3]), "growing numbers"),
        (lambda p: noise(p).update(left_out=[["much", "final"]]), "noise/much/final is left out"),
        (lambda p: noise(p)["rows"]["much"].update(best_of="x/y"), "noise: no such search: x/y"),
        (lambda p: noise(p)["rows"]["much"].update(best_of="epsilon/repaired"), "epsilon chooses by test pictures"),
    ],
)
def test_a_wrong_file_is_named(
    change: Callable[[dict[str, Any]], None], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    paper = json.loads(json.dumps(PAPER))
    change(paper)
    with_paper(tmp_path, monkeypatch, **paper)
    assert call(tmp_path) == 2
    error = capsys.readouterr().err
    assert words in error and "made_up" in error and not (tmp_path / "out").exists()


# --- the five papers -----------------------------------------------------------------------------------------


@pytest.mark.rotates(2)
@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_file_is_whole(paper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run composes, and something decides on every table that is planned or audited."""
    monkeypatch.setattr(papers, "held_out", lambda *_: (tmp_path / "split.npz", 10))  # there are no pictures
    found = papers.load(paper)
    assert found.paper == paper and len(found.claims) >= 10 and set(found.methods) <= set(METHODS)
    for folder in ("MNIST/raw", "FashionMNIST/raw", "cifar-10-batches-py", "cifar-100-python"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    planned, _ = papers.plan(found, "small", tmp_path / "data", tmp_path)
    for some in planned.values():
        assert some[0].name and [job.seed for job in some] == list(range(some[0].seed, some[0].seed + len(some)))
    decided = {cell[0] for claim in found.claims.values() for cell in claim.rests_on}
    assert decided >= {name for name, table in found.tables.items() if table.kind in ("plan", "audit")}


@pytest.mark.parametrize("paper", PAPERS)
def test_a_proof_is_where_a_papers_file_says(paper: str) -> None:
    """ "file.py, `function`": the file is there, and has it."""
    text = (papers.FOLDER / f"{paper}.yaml").read_text(encoding="utf-8")
    for file, function in re.findall(r"\b(fedpriv/[\w/]+\.py)(?:, `(\w+)`)?", text):
        code = (Path(__file__).resolve().parents[2] / file).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in code, f"{file}, {function}"


def test_a_table_may_stay_small_where_the_others_are_the_papers() -> None:
    """By the same options as at scale=small, so that its runs are the same ones."""
    paper = papers.load("fedags")

    def options(table: str, scale: papers.Scale) -> tuple[str, ...]:
        return papers.options_of(paper.tables[table], "fedags", next(iter(paper.tables[table].columns)), scale, ())

    assert options("cifar10", "literal") == options("cifar10", "small") and "scale=small" in options("cifar10", "small")
    assert "scale=literal" in options("table4", "literal") and "scale=small" in options("table4", "small")
    assert paper.tables["cifar10"].differences("literal") == paper.tables["cifar10"].differences("small") != []


def test_an_audit_is_held_against_a_claim_at_its_delta() -> None:
    """A lower bound at a delta below the claim's (e^-epsilon, DP-FedAGS) contradicts nothing."""
    table = papers.load("fedags").tables["audit"]
    options = papers.options_of(table, "audited", "release", "small", ())
    for more, refuted in (((), True), (("privacy.delta=0.001",), False)):
        scopes = audit_config(compose([*options, *more]), trials=2_000, confidence=0.9, seed=0, participations=1)
        assert any(scope.verdict.startswith("refutes") for scope in scopes) is refuted


def test_speed_is_the_mean_over_the_evaluated_rounds() -> None:
    """Of two runs that end alike, the one that was there earlier has more; two points are no curve."""

    def speed(*accuracies: float | None, measure: str = "over_rounds", every: int = 10) -> float | None:
        curve = tuple((every * place, accuracy, None) for place, accuracy in enumerate(accuracies, 1))
        record = RunRecord(name="run", kind="train", options=(), seed=0, command="", summary={}, curve=curve)
        return measured(record, measure)

    assert speed(0.2, None, 0.5, 0.8) == pytest.approx(50.0)
    early, late = speed(0.7, 0.8, 0.8), speed(0.1, 0.2, 0.8)
    assert early is not None and late is not None and early > late + 30
    assert speed(0.2, 0.8) is None and speed(None, 0.2, 0.8) is None
    rising = (0.1, 0.2, 0.3, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9)
    assert speed(*rising, measure="over_first_third") == pytest.approx(20.0)
    assert speed(*rising[:8], measure="over_first_third") is None and speed(*rising[:8]) is not None


def test_lengths_are_means_over_thirds_of_the_rounds() -> None:
    norms = tuple((place, float(place)) for place in range(1, 10))
    record = RunRecord(name="run", kind="train", options=(), seed=0, command="", summary={}, norms=norms)
    assert measured(record, "norm_first_third") == 2.0 and measured(record, "norm_last_third") == 8.0
