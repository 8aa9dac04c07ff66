"""Today's code against the committed results: one cheap run of every paper and of every leaderboard board, made again.

This is what protects results whose code may change. Exactly equal where the record's ``arithmetic`` is this machine's.
Elsewhere libraries choose other instructions and sum in another order, which changes last bits, and training carries
them on; the noise, drawn by the seed, stays. See `CLOSE` for how far.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fedpriv.studies.data import held_out, where
from fedpriv.studies.jobs import Job
from fedpriv.studies.results import Leaderboard, RunRecord, read_results, read_runs

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
#: Paper -> its methods.
PAPERS = {
    "adpfl": {"adpfl"},
    "agn": {"agn", "anr", "dpfl_agn"},
    "coqfl": {"coqfl"},
    "fedags": {"fedags"},
    "fedcad": {"fedcad"},
}

#: Parts of a record that say how and when it was made, not what was found.
CIRCUMSTANCES = ("seconds", "commit", "machine", "versions", "arithmetic", "date", "form", "superseded")
OF_THE_SUMMARY = ("timing", "versions", "commit", "peak_memory_mib")


@cache
def committed() -> dict[str, list[RunRecord]]:
    return {study: read_runs(RESULTS / study) for study in (*PAPERS, "leaderboard")}


def cheapest(runs: list[RunRecord]) -> RunRecord:
    return min((run for run in runs if run.superseded is None), key=lambda run: (run.seconds, run.name))


def sample() -> dict[str, RunRecord]:
    """Whose it is -> a run. Of a paper: the cheapest of its folder, and the cheapest training of its own methods there
    or among the ranked runs of the boards, since many settings of papers train for half a minute. Of a board: the
    cheapest of its ranked runs, unless one of the papers' is of that board.
    """
    board_runs = {run.name: run for run in committed()["leaderboard"]}
    results, _ = read_results(RESULTS / "leaderboard", Leaderboard)
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
        elif option.startswith("dataset.split="):
            _, name, size, seed = option.removesuffix(".npz").split("-")
            split, _ = held_out(where(name, pictures) or (), name, int(size), int(seed), folder)
            options[place] = f"dataset.split={split}"
    extra = run.command.partition(f" seed={run.seed} ")[2].split() if run.kind == "audit" else ()
    return Job(run.kind, tuple(options), run.seed, tuple(extra))


def findings(run: RunRecord) -> dict[str, Any]:
    """path -> value of everything that a run found."""
    content = run.model_dump(mode="json", exclude=set(CIRCUMSTANCES))
    content["summary"] = {name: part for name, part in content["summary"].items() if name not in OF_THE_SUMMARY}
    return dict(_leaves(json.loads(json.dumps(content))))


def _leaves(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(content, Mapping | list) and content:
        parts = content.items() if isinstance(content, Mapping) else enumerate(content)
        for name, part in parts:
            yield from _leaves(part, f"{path}/{name}")
    else:
        yield path, content
