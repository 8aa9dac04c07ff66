"""What a paper's runs would cost, before any of them is made."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedpriv.common.errors import OptionError
from fedpriv.studies.cost import client_epochs
from fedpriv.studies.experiments import plan
from fedpriv.studies.jobs import Job
from fedpriv.studies.reproduction import Measured, best_of_searches
from fedpriv.studies.results import RunRecord, read_runs
from fedpriv.studies.spec import AtLeast, Better, Reproduction, Scale, Similar

#: Core-seconds for 600 pictures of a small network, where nothing has been measured yet.
SECONDS_PER_EPOCH = 0.1


def plan_words(paper: Reproduction, scale: Scale, data: Path, folder: Path, seeds: int | None = None) -> list[str]:
    """Lines: runs and core-minutes of the first looks and of all of them, by table, what of it is done, and how much a
    table may use for looks beyond the first.
    """
    done = {record.name: record for record in _records(folder)}
    first = plan(paper, scale, data, folder, seeds=seeds)
    searched = {job: done[job.name] for job in first.searches if job.name in done}
    # Before a search is complete its options stand at its first column.
    whole = len(searched) == len(first.searches)
    best = best_of_searches(Measured(paper, first, searched, scale, seeds)) if whole else None
    first = plan(paper, scale, data, folder, seeds=seeds, best=best)
    tests = (claim for claim in paper.claims.values() if isinstance(claim.test, Better | Similar | AtLeast))
    wanted = {cell for claim in tests for cell in claim.cells} & first.jobs.keys()  # no other gets more seeds
    lasts = {} if seeds else {place: len(paper.looks(place[0], scale)) for place in wanted}
    last = plan(paper, scale, data, folder, seeds=seeds, best=best, taken=lasts)
    paces = _paces(done.values())
    lines = []
    for table in paper.tables:
        jobs = [
            {job for place, found in planned.jobs.items() if place[0] == table for job in found}
            for planned in (first, last)
        ]
        if jobs[0]:
            words, budget = f"  {table}: {_words(jobs[0], done, paces)}", paper.budget(table, scale) / 60
            if len(jobs[1]) > len(jobs[0]):
                words += f"; all looks: {_words(jobs[1], done, paces)}"
                words += f", made while it uses at most {budget:.3g}" if math.isfinite(budget) else ""
            lines.append(words)
    both = [set(planned.all_jobs) for planned in (first, last)]
    head = f"{paper.paper}: {_words(both[0], done, paces)}; all looks, at most: {_words(both[1], done, paces)}"
    return [head, *lines]


def _records(folder: Path) -> list[RunRecord]:
    return [one for one in read_runs(folder) if one.superseded is None] if (folder / "runs.jsonl").exists() else []


def _paces(records: Iterable[RunRecord]) -> Mapping[str, float]:
    """Method -> core-seconds of a run's client-epoch; "" for all together."""
    seconds: dict[str, float] = defaultdict(float)
    epochs: dict[str, float] = defaultdict(float)
    for record in records:
        trained = _trained(Job(record.kind, record.options, record.seed)) if record.kind == "train" else 0.0
        for name in (str(record.summary.get("strategy")), "") if trained else ():
            seconds[name] += record.seconds
            epochs[name] += trained
    return {name: seconds[name] / epochs[name] for name in epochs}


def _trained(job: Job) -> float:
    """0 where a record does not say where its pictures were: it lends nobody its pace."""
    try:
        return client_epochs(tuple(o for o in job.without_seed if not o.startswith("dataset.split=")))
    except OptionError:
        return 0.0


def _words(jobs: set[Job], done: Mapping[str, RunRecord], paces: Mapping[str, float]) -> str:
    left = [job for job in jobs if job.name not in done]
    minutes = sum(_seconds(job, paces) for job in left) / 60
    runs = f"{len(jobs)} run{'s' if len(jobs) > 1 else ''}"
    return f"{runs}, {len(left)} of them to be made (about {minutes:.1f} core-minutes)"


def _seconds(job: Job, paces: Mapping[str, float]) -> float:
    if job.kind not in ("train", "attack"):
        return 2.0
    method = next((o.partition("=")[2] for o in job.options if o.startswith("strategy=")), "")
    return 1.0 + _trained(job) * paces.get(method, paces.get("", SECONDS_PER_EPOCH))
