"""Today's code against the committed results: cheap runs of every paper and of every leaderboard board, made again, and
the names of every method's runs. A commit checks one part in `PARTS` of both; FEDPRIV_ALL_RUNS=1: all of them.

This is what protects results whose code may change. Equal (`same`) where the record's ``arithmetic`` is this machine's.
Elsewhere libraries choose other instructions and sum in another order, which changes last bits, and training carries
them on; the noise, drawn by the seed, stays. See `close` for how far.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from rotation import commit, everything

from fedpriv.studies import data, papers
from fedpriv.studies.boards import read_boards
from fedpriv.studies.data import held_out, where
from fedpriv.studies.jobs import Job
from fedpriv.studies.papers import Place
from fedpriv.studies.reproduction import Measured
from fedpriv.studies.results import Leaderboard, PaperResults, RunRecord, arithmetic, read_runs, read_study
from fedpriv.studies.runner import carry_out
from fedpriv.studies.verdicts import CANNOT, outcomes

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
#: Paper -> its methods.
PAPERS = {
    "adpfl": {"adpfl"},
    "agn": {"agn", "anr", "dpfl_agn"},
    "coqfl": {"coqfl"},
    "fedags": {"fedags"},
    "fedcad": {"fedcad"},
}

#: By the hash of the commit, so that a checkout always has the same part.
PARTS = 8


@cache
def part() -> int | None:
    """None: all of them."""
    return None if everything() else commit() % PARTS


def checked(names: Iterable[str]) -> list[str]:
    return [name for place, name in enumerate(sorted(names)) if part() in (None, place % PARTS)]


#: Parts of a record that say how and when it was made, not what was found.
CIRCUMSTANCES = ("seconds", "commit", "machine", "versions", "arithmetic", "date", "form", "superseded")
OF_THE_SUMMARY = ("timing", "versions", "commit", "peak_memory_mib", "public_knowledge")


@cache
def committed() -> dict[str, list[RunRecord]]:
    return {study: read_runs(RESULTS / study) for study in (*PAPERS, "leaderboard")}


def in_history(commit: str) -> bool:
    call = ["git", "-C", str(RESULTS), "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(call, capture_output=True).returncode == 0


def test_every_commit_that_made_a_run_is_in_the_history_or_said_not_to_be() -> None:
    """In a checkout with the whole history. Elsewhere the page's list of missing ones is held against the records."""
    made_by = {run.commit.removesuffix("+") for runs in committed().values() for run in runs}
    commits = {name for name in made_by if re.fullmatch("[0-9a-f]{12}", name)}
    page = (RESULTS / "names.md").read_text(encoding="utf-8")
    said = page[page.index("Some records name commits that are not in the history: ") :].partition(". ")[0]
    missing = set(re.findall(r"\b[0-9a-f]{12}\b", said))
    assert missing <= commits and len(commits) > 20
    asked = ["git", "-C", str(RESULTS), "rev-parse", "--is-shallow-repository"]
    if subprocess.run(asked, capture_output=True, text=True).stdout.strip() == "false":
        assert {name for name in commits if not in_history(name)} == missing


def cheapest(runs: list[RunRecord]) -> RunRecord:
    """Those whose machine is known before others."""
    valid = (run for run in runs if run.superseded is None)
    return min(valid, key=lambda run: (not run.arithmetic, run.seconds, run.name))


@cache
def sample() -> dict[str, RunRecord]:
    """Whose it is -> a run. Of a paper: the cheapest of its folder, and the cheapest training of its own methods there
    or among the ranked runs of the boards, since many settings of papers train for half a minute. Of a board: the
    cheapest of its ranked runs, unless one of the papers' is of that board.
    """
    board_runs = {run.name: run for run in committed()["leaderboard"]}
    results = read_study(RESULTS / "leaderboard", Leaderboard)
    ranked = {board.name: [board_runs[n] for entry in board.entries for n in entry.runs] for board in results.boards}
    on_boards = [run for runs in ranked.values() for run in runs]
    found = {}
    for paper, methods in PAPERS.items():
        own = committed()[paper]
        found[paper] = cheapest(own)
        trained = [run for run in (*own, *on_boards) if run.kind == "train"]
        found[f"{paper}, trained"] = cheapest([run for run in trained if run.summary["strategy"] in methods])
    taken = {run.name for run in found.values()}
    for board, runs in ranked.items():
        if taken.isdisjoint(run.name for run in runs):
            found[board] = cheapest(runs)
    return found


def job_of(run: RunRecord, pictures: Path, folder: Path) -> Job:
    """The job that a record is of, with this machine's places."""
    options = list(run.options)
    for place, option in enumerate(run.options):
        if option == "dataset=mnist":
            options += (where("mnist", pictures) or ())[1:]
        elif option.startswith("dataset.split=test-"):
            name = option.partition("test-")[2].removesuffix(".npz")
            options[place] = f"dataset.split={data.own_test(where(name, pictures) or (), name, folder)}"
        elif option.startswith("dataset.split="):
            _, name, size, seed, *tested = option.removesuffix(".npz").split("-")
            split, _ = held_out(where(name, pictures) or (), name, int(size), int(seed), folder)
            if tested:
                split = data.tested_elsewhere(where(name, pictures) or (), split)
            options[place] = f"dataset.split={split}"
    extra = run.command.partition(f" seed={run.seed} ")[2].split() if run.kind == "audit" else ()
    return Job(run.kind, tuple(options), run.seed, tuple(extra))


def findings(run: RunRecord) -> dict[str, Any]:
    """path -> value of everything that a run found. Of reasons their number: their words may be bettered."""
    content = run.model_dump(mode="json", exclude=set(CIRCUMSTANCES))
    content["summary"] = {name: part for name, part in content["summary"].items() if name not in OF_THE_SUMMARY}
    if privacy := content["summary"].get("privacy", {}):
        privacy.pop("in_run_offer", None)  # what an audit would have taken is not found by the run
        if "reasons" in privacy:
            privacy["reasons"] = len(privacy["reasons"])
    return dict(_leaves(json.loads(json.dumps(content))))


def _leaves(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(content, Mapping | list) and content:
        parts = content.items() if isinstance(content, Mapping) else enumerate(content)
        for name, part in parts:
            yield from _leaves(part, f"{path}/{name}")
    else:
        yield path, content


def close(path: str, then: Any, now: Any) -> bool:
    """Whether a figure is that of a record of another kind of machine.

    Of training, where other last bits grow: accuracy within 2 points, loss within 5 %, the mean length of the clients'
    updates within 2 % in the first five rounds. Halved noise, a clip norm that is not applied or another partition move
    at least one of these further. What is computed in float64 from options alone (epsilons, bytes, counts): to 1e-6.
    """
    if isinstance(then, bool | str | dict | list) or then is None or now is None or isinstance(now, str):
        return bool(then == now)
    parts = path.split("/")
    if parts[1:3] == ["summary", "metrics"] and isinstance(then, float):
        return abs(then - now) <= (0.05 if "sites" in parts else 0.02)  # a site has some sixty test rows
    if parts[1] == "norms" and parts[3] == "1":
        return int(parts[2]) >= 5 or math.isclose(then, now, rel_tol=0.02)
    if (parts[1] == "curve" and parts[3] != "0") or parts[1:3] in (["summary", "accuracy"], ["summary", "loss"]):
        accuracy = parts[3] == "1" or parts[2] == "accuracy"
        return abs(then - now) <= 0.02 if accuracy else math.isclose(then, now, rel_tol=0.05)
    return math.isclose(then, now, rel_tol=1e-6)


#: The leading metric, also site by site.
METRICS = "/summary/metrics/"


def same(path: str, then: Any, now: Any) -> bool:
    """Whether a figure is that of a record of this kind of machine: equal. Of a loss on the test examples, and of a
    Brier score, to 1e-7: the last bits of a layer's outputs in float32 follow the address of its inputs, modulo 16
    bytes, and a sum of them the threads that a process has started. Shares that are right and ranks do not change by
    this, and no result depends on it. Of epsilons to 1e-6: records were made when the rounding of transforms was in
    them (`fedpriv.privacy.dp_library`).
    """
    if path.startswith("/summary/privacy/") and isinstance(then, float) and isinstance(now, float):
        return math.isclose(then, now, rel_tol=1e-6)
    of_scores = path.startswith("/summary/loss") or (path.startswith("/curve") and path.endswith("/2"))
    of_scores |= path in ("/summary/metrics/final/brier", "/summary/metrics/final/loss")
    return bool(then == now) or (of_scores and math.isclose(then, now, rel_tol=1e-7))


def test_scores_are_compared_to_the_seventh_digit_and_nothing_else_is() -> None:
    for path in ("/summary/loss/final", "/summary/metrics/final/brier", "/summary/metrics/final/loss"):
        assert same(path, 0.1441199424787168, 0.14411994156065838) and not same(path, 0.14411994, 0.14412)
    assert not same("/summary/metrics/final/auc", 0.8314, 0.8314 * (1 + 1e-8))
    assert not same("/summary/privacy/verified_epsilon", 8.0, 8.00001)


@pytest.mark.pictures
@pytest.mark.parametrize("whose", checked(sample()))
def test_todays_code_gives_a_committed_result(whose: str, pictures: Path, tmp_path: Path) -> None:
    then = sample()[whose]
    job = job_of(then, pictures, tmp_path)
    assert job.name == then.name, "the digest of its options is another: no committed result would be found again"
    torch.set_num_threads(1)
    now = carry_out(job, tmp_path / "runs")
    before, after = findings(then), findings(now)
    for said in (METRICS, "/metrics/spread", "/summary/untrained", "/other_adjacency", "/other_epsilon"):
        if not any(said in path for path in before):  # made when no run said it
            after = {path: value for path, value in after.items() if said not in path}
    assert now.form == then.form and before.keys() == after.keys()
    holds = same if (exactly := then.arithmetic == arithmetic()) else close
    other = {path: (value, after[path]) for path, value in before.items() if not holds(path, value, after[path])}
    assert other == {}, f"{then.command}, made by {then.commit}; compared {'exactly' if exactly else 'closely'}"


@cache
def by_options() -> dict[str, RunRecord]:
    """What its options name beside a value of a range, a target or a seed -> a run on public sets."""
    found, gone = {}, {f"strategy.client.mechanism={name}" for name in ("hadamard", "sketch")}
    for runs in committed().values():
        for run in runs:
            options = [o for o in run.options if not re.fullmatch(r"[^=]*=[-+\d.e]+", o)]
            if not gone.isdisjoint(options):  # docs/results/names.md
                continue
            if run.kind == "train" and not any(o.startswith(("dataset.split=", "dataset=image")) for o in options):
                found.setdefault(" ".join(options), run)
    return found


def test_a_finished_run_is_found_by_its_name() -> None:
    """An option that comes or goes changes no digest of a committed run: of each method one, and others in turn."""
    of_methods = {run.name.split("-")[1]: run for run in by_options().values()}
    runs = [*(by_options()[one] for one in checked(by_options())), *of_methods.values()]
    assert len(of_methods) > 10
    lost = {run.name: run.command for run in runs if Job(run.kind, run.options, run.seed).name != run.name}
    assert lost == {}, "no such committed result would be found again"


def test_the_sample_is_cheap_and_complete() -> None:
    found = sample()
    results = read_study(RESULTS / "leaderboard", Leaderboard)
    names = {run.name for run in found.values()}
    for board in results.boards:
        assert set(read_boards("all")) >= {board.name}
        assert any(not names.isdisjoint(entry.runs) for entry in board.entries), board.name
    assert set(PAPERS) <= set(found) and sum(run.seconds for run in found.values()) < 200
    assert all(run.arithmetic for run in found.values()), "a sample of unknown machines is never compared exactly"


@pytest.mark.parametrize(
    ("path", "then", "now", "allowed"),
    [
        ("/summary/accuracy/final", 0.90, 0.915, True),
        ("/summary/accuracy/final", 0.90, 0.93, False),
        ("/curve/0/2", 1.0, 1.06, False),
        ("/curve/0/0", 10, 11, False),
        ("/norms/2/1", 0.50, 0.52, False),
        ("/summary/privacy/verified_epsilon", 8.0, 7.99, False),
        ("/summary/privacy/verified_epsilon", "inf", 8.0, False),
        ("/summary/traffic/bytes_up", 100, 101, False),
    ],
)
def test_what_is_close(path: str, then: Any, now: Any, allowed: bool) -> None:
    assert close(path, then, now) is allowed


class Committed(Measured):
    """Committed runs of a paper, by the names in its committed tables: nothing is composed, no picture is read."""

    def __init__(self, paper: str) -> None:
        stored = read_study(RESULTS / paper, PaperResults)
        by_name = {run.name: run for run in committed()[paper]}
        asked = papers.load(paper)
        cells = {
            (table.name, row.name, column): cell
            for table in stored.tables
            for row in table.rows
            for column, cell in zip(asked.tables[table.name].columns, row.cells, strict=True)
        }
        self.__dict__["runs"] = {place: [by_name[name] for name in cell.runs] for place, cell in cells.items()}
        self.__dict__["why"] = {place: cell.missing for place, cell in cells.items() if cell.missing}
        waits = ("refused", "it has not been run yet", "nothing was measured")
        missing = {place: why for place, why in self.__dict__["why"].items() if not why.startswith(waits)}
        super().__init__(asked, stored.scale, {}, missing, {})
        self.__dict__["stored"] = stored

    def of(self, place: Place) -> list[RunRecord]:
        found: list[RunRecord] = self.__dict__["runs"].get(place, [])
        return found

    def why_missing(self, place: Place) -> str | None:
        return self.__dict__["why"].get(place) or (None if self.values(place).by_seed else "nothing was measured")


@pytest.mark.parametrize("paper", sorted(PAPERS))
def test_what_waits_for_fresh_seeds_names_their_table(paper: str) -> None:
    study = Committed(paper)
    for claim in study.__dict__["stored"].claims:
        if "open until fresh seeds" in claim.words:
            assert study.paper.claims[claim.name].confirm, claim.name


@pytest.mark.parametrize("paper", sorted(PAPERS))
def test_the_committed_verdicts_and_tables_come_out_again_from_the_committed_runs(paper: str) -> None:
    study = Committed(paper)
    stored, found = study.__dict__["stored"], outcomes(study)
    for claim in stored.claims:
        one = found[claim.name]
        p = None if one.verdict == CANNOT else one.p
        assert (claim.verdict, claim.p) == (one.verdict, p if p is None else pytest.approx(p, abs=1e-9)), claim.name
    count = 0
    for table in stored.tables:
        columns = list(study.paper.tables[table.name].columns)
        for row in table.rows:
            for column, cell in zip(columns, row.cells, strict=True):
                values = study.values((table.name, row.name, column))
                again = values.estimate if values.by_seed else None
                assert (again and again.n) == (cell.measured and cell.measured.n), (table.name, row.name, column)
                if again and cell.measured and again.mean not in (None, math.inf):
                    count += 1
                    assert again.mean == pytest.approx(cell.measured.mean, rel=1e-9)
                    assert (again.half_width or 0.0) == pytest.approx(cell.measured.half_width or 0.0, rel=1e-9)
    assert count > 30
