"""A paper's experiments end to end, on a paper made up for the digits; and the five papers' own files."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up_paper import DIGITS, PAPER, with_paper

from fedpriv.attacks.release_audit import audit_config
from fedpriv.commands import reproduce
from fedpriv.common.errors import OptionError
from fedpriv.common.files import locked
from fedpriv.config.compose import compose
from fedpriv.config.methods import METHODS
from fedpriv.report.words import figure
from fedpriv.studies import experiments, job_kinds, spec, study_words
from fedpriv.studies.experiments import plan, total_epochs
from fedpriv.studies.reproduction import measured
from fedpriv.studies.results import PaperResults, RunRecord, read_results
from tools import mark_results


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the made-up paper's results."""
    folder = tmp_path_factory.mktemp("reproduced")
    with pytest.MonkeyPatch.context() as patch:
        with_paper(folder, patch)
        assert reproduce.main(["paper=made_up", "workers=1", f"out={folder / 'out'}", f"data={folder}"]) == 0
    return folder / "out" / "made_up"


def test_tables_verdicts_and_figures_are_written(reproduced: Path) -> None:
    results, runs = read_results(reproduced, PaperResults)
    little, much = results.tables[0].rows
    assert little.cells[0].measured is not None and much.cells[0].measured is not None
    assert little.cells[0].measured.n == 2 and results.seeds == 2
    assert (little.cells[0].measured.mean or 0) > (much.cells[0].measured.mean or 0) + 20
    assert little.cells[0].reported == 30.0 and set(little.cells[0].runs) <= {run.name for run in runs}
    (order,) = results.tables[0].orderings
    assert order.reported == ("much noise", "little noise") and order.measured == ("little noise", "much noise")
    assert not order.holds and order.agreeing == 0
    verdicts = {claim.name: claim for claim in results.claims}
    assert verdicts["right"].verdict == "holds" and verdicts["wrong"].verdict == "does not hold"
    assert verdicts["private"].verdict == "does not hold" and "∞" in verdicts["private"].words
    assert verdicts["repaired"].verdict == "holds"
    assert verdicts["pictures"].verdict == "cannot be tested here" and "mnist" in verdicts["pictures"].words
    epsilon = {run.name: run.summary["privacy"]["verified_epsilon"] for run in runs if run.kind == "train"}
    prices = " against ".join(figure(epsilon[row.cells[0].runs[0]]) for row in (little, much))
    assert f"Not at equal privacy: the runs' verified ε is {prices}." in verdicts["right"].words
    assert {name: claim.basis for name, claim in verdicts.items()} == {
        "right": "runs", "wrong": "runs", "private": "computed", "repaired": "computed", "pictures": "",
    }  # fmt: skip
    assert {drawn.name for drawn in results.figures} == {"curves", "norms"}
    for drawn in results.figures:
        assert (reproduced / drawn.file).read_bytes().startswith(b"\x89PNG")
    assert results.provenance.client_epochs == pytest.approx(4 * 2 * 1437 / 600, abs=0.06)
    with (reproduced / "tables" / "noise.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["row"] for row in rows] == ["little noise", "much noise"] and rows[0]["seeds"] == "2"
    page = (reproduced / "README.md").read_text()
    assert "A leak | with a bar." in page and "| It is private | Theorem 1 | **does not hold** |" in page
    assert "measured little noise > much noise. It does not hold" in page and "![Curves:" in page


def test_the_setting_and_the_seeds_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What scale=small leaves out stands with the table and with every verdict that rests on it; seeds with tables."""
    changed = json.loads(json.dumps(PAPER))
    changed["tables"]["noise"]["small_differs"] = "2 rounds in place of 200"
    changed["tables"]["noise"]["differs"] = "ours"
    changed["claims"]["private"]["beside"] = ["epsilon/repaired/run"]
    changed["claims"]["level"] = {
        "claim": "It is good", "source": "s", "test": {"kind": "at_least", "cell": "noise/much/final", "bound": 99.0},
    }  # fmt: skip
    alike = {"kind": "similar", "pairs": [["noise/much/final", "noise/little/final"]], "within": 1}
    changed["claims"]["alike"] = {"claim": "They are alike", "source": "s", "test": alike}
    changed["claims"]["size"] = {"claim": "They differ by a point", "source": "s", "test": {**alike, "size": True}}
    with_paper(tmp_path, monkeypatch, **changed)
    out = tmp_path / "out"
    assert reproduce.main(["paper=made_up", "workers=1", f"out={out}", f"data={tmp_path}", "seeds=2"]) == 0
    results, _ = read_results(out / "made_up", PaperResults)
    claims = {claim.name: claim for claim in results.claims}
    assert claims["size"].verdict == "cannot be tested here" != claims["alike"].verdict
    assert "Not the paper's setting: ours; 2 rounds in place of 200." in claims["wrong"].words
    assert "Not the paper's" not in claims["private"].words + claims["pictures"].words
    assert claims["level"].verdict == "cannot be tested here" and "2 rounds in place" in claims["level"].words
    assert "Repaired: " in claims["private"].words
    assert results.tables[0].notes == ("At both scales: ours.", "At scale=small: 2 rounds in place of 200.")
    page = (out / "made_up" / "README.md").read_text()
    assert "`python -m fedpriv.reproduce paper=made_up scale=small seeds=2`" in page
    assert "half width of the 95 % interval over 2 seeds; in brackets what the paper reports." in page
    assert "Theorem 1. Computed." in page and "\n- Other pictures (Table 2): " in page
    row = next(line for line in page.split("\n") if line.startswith("| Much noise is better"))
    assert row.endswith("¹ |") and "Not the paper's" not in row and "Corrected p" in row
    assert page.count("Not the paper's setting: ours; 2 rounds in place of 200.") == 1
    assert "\n¹ Not the paper's setting: ours" in page


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
    call = ["paper=made_up", "workers=1", f"out={tmp_path / 'out'}", f"data={tmp_path}"]
    assert reproduce.main(call) == 0
    results, runs = read_results(tmp_path / "out" / "made_up", PaperResults)
    search, chosen = results.tables
    assert "kept from training; one seed. Chosen: Fed-LDP: a tenth." in search.notes[0]
    by_name = {run.name: run for run in runs}
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
        assert reproduce.main(["paper=made_up", "workers=1", f"out={tmp_path / 'out'}", f"data={tmp_path}"]) != 0
    assert "another run is writing into this folder" in capsys.readouterr().err


def test_a_second_call_runs_nothing_and_a_change_runs_only_what_it_changes(
    reproduced: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []
    real = job_kinds.WORK["train"]
    monkeypatch.setitem(job_kinds.WORK, "train", lambda job, path: done.append(job.name) or real(job, path))
    with_paper(tmp_path, monkeypatch)
    call = ["paper=made_up", "workers=1", f"out={reproduced.parent}", f"data={tmp_path}"]
    assert reproduce.main(call) == 0
    assert done == []
    changed = json.loads(json.dumps(PAPER))
    changed["tables"]["noise"]["rows"]["much"]["options"] = ["strategy.client.noise_multiplier=11"]
    with_paper(tmp_path, monkeypatch, tables=changed["tables"])
    assert reproduce.main([*call[:2], f"out={tmp_path / 'out'}", call[3], "seeds=1"]) == 0
    assert len(done) == 2  # another folder: both rows, one seed each
    done.clear()
    assert reproduce.main([*call[:2], f"out={tmp_path / 'out'}", call[3], "seeds=2"]) == 0
    assert len(done) == 2 and all(name.endswith("-s1") for name in done)


def test_a_job_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = json.loads(json.dumps(PAPER))
    changed["tables"]["noise"]["rows"]["much"]["options"] += ["local.sampler=poisson", "local.batch_size=900"]
    with_paper(tmp_path, monkeypatch, tables=changed["tables"], claims={"right": PAPER["claims"]["right"]})
    code = reproduce.main(["paper=made_up", "workers=1", f"out={tmp_path / 'out'}", "seeds=1", f"data={tmp_path}"])
    assert code == 1
    captured = capsys.readouterr()
    assert "1 runs failed" in captured.err and "local.batch_size=900" in captured.err
    results, _ = read_results(tmp_path / "out" / "made_up", PaperResults)
    assert results.tables[0].rows[0].cells[0].measured is not None
    assert "refused: local.batch_size=900" in str(results.tables[0].rows[1].cells[0].missing)
    assert results.claims[0].verdict == "cannot be tested here"
    assert results.provenance.client_epochs == pytest.approx(2 * 1437 / 600, abs=0.03)  # of the run that was made


def test_one_table_is_made_with_the_claims_that_rest_on_it_alone(
    reproduced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_paper(tmp_path, monkeypatch)
    whole = tmp_path / "out" / "made_up"
    whole.mkdir(parents=True)
    shutil.copyfile(reproduced / "runs.jsonl", whole / "runs.jsonl")
    arguments = ["paper=made_up", "workers=1", f"out={tmp_path / 'out'}", f"data={tmp_path}", "table=noise"]
    assert reproduce.main([*arguments, "plan=true"]) == 0
    assert "made_up: 4 runs, 0 of them to be made" in capsys.readouterr().out  # those of the whole paper count
    assert reproduce.main(arguments) == 0
    results, runs = read_results(whole / "noise", PaperResults)
    assert [table.name for table in results.tables] == ["noise"] and len(runs) == 4
    assert {claim.name for claim in results.claims} == {"right", "wrong"}
    assert not (whole / "README.md").exists() and not (tmp_path / "out" / "README.md").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["paper=nothing"], "paper=nothing: allowed: adpfl, agn, coqfl, fedags, fedcad, all"),
        (["paper=fedcad", "scale=big"], "scale=big: allowed: small, literal"),
        (["paper=fedcad", "workers=-1"], "workers=-1: must be a whole number from 0 to 1024"),
        (["paper=fedcad", "seeds=0"], "seeds=0: must be a whole number from 1 to 100"),
        (["paper=fedcad", "download=yes"], "download=yes: allowed: false, true"),
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda paper: paper["claims"]["right"]["test"].update(pairs=[["noise/x/final", "noise/much/final"]]),
            "no such",
        ),
        (lambda paper: paper["tables"]["noise"].update(measure="speed"), "no such measure: speed; allowed: accuracy"),
        (lambda paper: paper["tables"]["noise"]["reported"].update(x={"final": 1}), "no such row and column: x, final"),
        (lambda paper: paper["figures"]["curves"].update(table="x"), "figures.curves: no such table: x"),
        (lambda paper: paper["tables"]["noise"].update(colour="red"), "colour"),
        (lambda paper: paper["tables"]["noise"]["rows"]["much"].update(best_of="x/y"), "noise: no such search: x/y"),
        (
            lambda paper: paper["tables"]["noise"]["rows"]["much"].update(best_of="epsilon/repaired"),
            "epsilon chooses by test pictures",
        ),
        (lambda paper: paper["client_epochs"].update(small=1), "client-epochs are planned, more than the budget of 1"),
    ],
)
def test_a_wrong_file_is_named(
    change: Callable[[dict[str, Any]], None], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    paper = json.loads(json.dumps(PAPER))
    change(paper)
    with_paper(tmp_path, monkeypatch, **paper)
    assert reproduce.main(["paper=made_up", f"out={tmp_path / 'out'}", f"data={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert words in error and "made_up" in error and not (tmp_path / "out").exists()


# --- the five papers -----------------------------------------------------------------------------------------


@pytest.mark.rotates(2)
@pytest.mark.parametrize("paper", ["adpfl", "agn", "coqfl", "fedags", "fedcad"])
def test_a_papers_file_is_whole(paper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run composes, both scales stay within their budgets, every claim is decided by something."""
    monkeypatch.setattr(experiments, "held_out", lambda *_: (tmp_path / "split.npz", 10))  # there are no pictures
    found = spec.load(paper)
    assert found.paper == paper and len(found.claims) >= 10 and set(found.methods) <= set(METHODS)
    data = tmp_path / "data"
    (data / "MNIST" / "raw").mkdir(parents=True)
    (data / "FashionMNIST" / "raw").mkdir(parents=True)
    (data / "cifar-10-batches-py").mkdir(parents=True)
    (data / "cifar-100-python").mkdir(parents=True)
    planned = plan(found, "small", data, tmp_path)
    assert 0 < total_epochs(planned.all_jobs) <= found.client_epochs["small"]
    decided = {cell for claim in found.claims.values() for cell in (*claim.cells, *claim.beside)}
    assert {table for table, _, _ in decided} >= {
        name for name, t in found.tables.items() if t.kind in ("plan", "audit")
    }


#: Claims that a bound above them refutes, and by what. Whoever adds one says why in the file (`decides`).
REFUTING = {
    "fedcad": {"epsilon_03", "epsilon_05", "epsilon_fmnist", "same_cost", "audited"},
    "adpfl": {"private", "private_run", "constant"},
    "coqfl": {"private_run"},
    "fedags": {"private", "theorem2", "dpfedavg_private", "dpfedavg_private_01", "dpfedavg_private_02"},
    "agn": {"epsilon_literal", "theorem1"},
}


def test_fresh_seeds_are_planned_where_they_are_asked_for(tmp_path: Path) -> None:
    """From seed 100 on, as many as the file says; a study that is repeated does not make them."""
    paper = spec.load("coqfl")
    place = ("variance_fresh", "coqfl", "e1")
    usual = experiments.plan(paper, "small", tmp_path, tmp_path)
    assert place not in usual.jobs and usual.missing[place] == "fresh seeds are run with fresh=true"
    asked = experiments.plan(paper, "small", tmp_path, tmp_path, fresh=True)
    assert [job.seed for job in asked.jobs[place]] == list(range(100, 112))
    assert usual.jobs == {at: jobs for at, jobs in asked.jobs.items() if not paper.tables[at[0]].first_seed}


def test_a_moved_verdict_counts_with_fresh_seeds_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The made-up paper: what the list before had differently is open, and what it had alike is not."""
    changed = json.loads(json.dumps(PAPER))
    changed["client_epochs"] = {"small": 1000, "literal": 1000}
    changed["claims"]["right"] |= {"before": "not decided"}
    changed["claims"]["same"] = changed["claims"]["right"] | {"before": "holds"}
    changed["claims"]["late"] = changed["claims"]["same"] | {"late": True}
    changed["tables"]["fresh"] = changed["tables"]["noise"] | {"first_seed": 100, "title": "Fresh", "seeds": 4}
    changed["claims"]["again"] = changed["claims"]["right"] | {"confirm": {"noise": "fresh"}}
    with_paper(tmp_path, monkeypatch, **changed)
    out = tmp_path / "out"
    given = ["paper=made_up", "workers=1", f"out={out}", f"data={tmp_path}", "seeds=4"]
    assert reproduce.main(given) == 0

    def verdicts() -> dict[str, str]:
        return {claim.name: claim.verdict for claim in read_results(out / "made_up", PaperResults)[0].claims}

    first = verdicts()
    assert first["same"] == "holds" and {first[one] for one in ("right", "late", "again")} == {"not decided"}
    assert reproduce.main([*given, "fresh=true"]) == 0
    assert verdicts() == first | {"again": "holds"}


def test_a_table_may_stay_small_where_the_others_are_the_papers() -> None:
    """By the same options as at scale=small, so that its runs are the same ones."""
    paper = spec.load("fedags")

    def options(table: str, scale: spec.Scale) -> tuple[str, ...]:
        return experiments._options(paper.tables[table], "fedags", next(iter(paper.tables[table].columns)), scale, ())

    assert options("cifar10", "literal") == options("cifar10", "small") and "scale=small" in options("cifar10", "small")
    assert "scale=literal" in options("table4", "literal") and "scale=small" in options("table4", "small")
    assert paper.tables["cifar10"].differences("literal") == paper.tables["cifar10"].differences("small") != []


@pytest.mark.parametrize("paper", sorted(REFUTING))
def test_a_bound_refutes_only_with_a_reason(paper: str) -> None:
    claims = spec.load(paper).claims
    assert {name for name, claim in claims.items() if getattr(claim.test, "decides", "")} == REFUTING[paper]


def test_an_audit_is_held_against_a_claim_at_its_delta() -> None:
    """A lower bound at a delta below the claim's (e^-epsilon, DP-FedAGS) contradicts nothing."""
    table = spec.load("fedags").tables["audit"]
    options = experiments._options(table, "audited", "release", "small", ())
    for more, refuted in (((), True), (("privacy.delta=0.001",), False)):
        scopes = audit_config(compose([*options, *more]), trials=2_000, confidence=0.9, seed=0, participations=1)
        assert any(scope.verdict.startswith("refutes") for scope in scopes) is refuted


def test_a_paper_that_is_not_there() -> None:
    with pytest.raises(OptionError, match="allowed: adpfl, agn, coqfl, fedags, fedcad, all"):
        spec.load("nothing")


def test_a_fresh_checkout_goes_on_from_the_lines_of_a_study(
    reproduced: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the jobs' own folders gone nothing is run again but what is marked, and the mark is gone then."""
    done: list[str] = []
    real = job_kinds.WORK["train"]
    monkeypatch.setitem(job_kinds.WORK, "train", lambda job, path: done.append(job.name) or real(job, path))
    with_paper(tmp_path, monkeypatch)
    out = tmp_path / "out" / "made_up"
    shutil.copytree(reproduced, out, ignore=shutil.ignore_patterns("runs"))
    call = ["paper=made_up", "workers=1", f"out={out.parent}", f"data={tmp_path}"]
    assert reproduce.main(call) == 0 and done == []
    assert (out / "runs.jsonl").read_text() == (reproduced / "runs.jsonl").read_text()

    assert mark_results.main(["strategy=fedprox", "reason=x", f"results={out.parent}"]) == 2
    assert mark_results.main(["strategy=fedcad", "reason=x", f"results={out.parent}"]) == 0
    assert "to be made anew" not in (out / "README.md").read_text()  # its plans are of another kind
    assert mark_results.main(["strategy=fedldp", "reason=its noise changed", f"results={out.parent}"]) == 0
    results, marked = read_results(out, PaperResults)
    assert all((run.superseded is not None) == (run.kind == "train") for run in marked)
    cells = {table.name: table.rows[0].cells[0] for table in results.tables}
    assert cells["noise"].superseded == "its noise changed" and cells["epsilon"].superseded is None
    page = (out / "README.md").read_text()
    assert "- †: to be made anew: its noise changed" in page and "to be made anew: 4 of fedldp" in page
    assert page == study_words.page(results)

    assert reproduce.main(call) == 0
    assert sorted(done) == sorted(run.name for run in marked if run.kind == "train")
    results, again = read_results(out, PaperResults)
    assert all(run.superseded is None for run in again) and "†" not in (out / "README.md").read_text()
    figures = [run.summary["accuracy"] for run in again if run.kind == "train"]
    assert figures == [run.summary["accuracy"] for run in marked if run.kind == "train"]
    done.clear()
    assert reproduce.main(call) == 0 and done == []


def test_speed_is_the_mean_over_the_evaluated_rounds() -> None:
    """Of two runs that end alike, the one that was there earlier has more; two points are no curve."""

    def speed(*accuracies: float | None) -> float | None:
        curve = tuple((10 * place, accuracy, None) for place, accuracy in enumerate(accuracies, 1))
        record = RunRecord(name="run", kind="train", options=(), seed=0, command="", summary={}, curve=curve)
        return measured(record, "over_rounds")

    assert speed(0.2, None, 0.5, 0.8) == pytest.approx(50.0)
    early, late = speed(0.7, 0.8, 0.8), speed(0.1, 0.2, 0.8)
    assert early is not None and late is not None and early > late + 30
    assert speed(0.2, 0.8) is None and speed(None, 0.2, 0.8) is None


def test_early_speed_is_that_of_the_first_third() -> None:
    accuracies = (0.1, 0.2, 0.3, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9)
    curve = tuple((2 * place, accuracy, None) for place, accuracy in enumerate(accuracies, 1))
    record = RunRecord(name="run", kind="train", options=(), seed=0, command="", summary={}, curve=curve)
    assert measured(record, "over_first_third") == pytest.approx(20.0)
    shorter = record.model_copy(update={"curve": curve[:8]})
    assert measured(shorter, "over_first_third") is None and measured(shorter, "over_rounds") is not None
