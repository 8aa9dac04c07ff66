"""Runs a paper's jobs with a person looking on, and writes what they gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from fedpriv.common.files import locked
from fedpriv.studies.adding_seeds import Do, Study
from fedpriv.studies.carrying_out import Failure, carry_out_all, find, restore
from fedpriv.studies.experiments import plan
from fedpriv.studies.figures import draw_figures
from fedpriv.studies.jobs import NO_RUNS, Job
from fedpriv.studies.reproduction import evaluate
from fedpriv.studies.results import RunRecord, read_runs, write_results
from fedpriv.studies.spec import Reproduction, Scale
from fedpriv.studies.study_progress import StudyProgress
from fedpriv.studies.study_words import counted, write_words

RUNS = "runs"


def reproduce(
    paper: Reproduction,
    scale: Scale,
    data: Path,
    folder: Path,
    *,
    download: bool = False,
    workers: int = 0,
    seeds: int | None = None,
    core_minutes: int | None = None,
    run: bool = True,
) -> list[Failure]:
    """Runs what is missing, writes tables, figures, verdicts and records into ``folder``; returns what failed. run:
    False evaluates what runs.jsonl holds, also what is marked there to be made anew, and what is only computed; records
    that nothing rests on (a look that is there in part) stay in it.
    """
    if core_minutes is not None:
        paper = paper.with_core_minutes(core_minutes)
    make_plan = partial(plan, paper, scale, data, folder, download=download, seeds=seeds)
    with locked(folder / RUNS), StudyProgress() as progress:

        def do(what: str, jobs: Sequence[Job]) -> Mapping[Job, RunRecord | Failure]:
            return carry_out_all(jobs, folder / RUNS, workers, partial(progress.told, f"{what} scale={scale}"))

        if run:
            restore(folder, folder / RUNS)
            study = Study(paper, scale, make_plan, do, lambda job: find(job, folder / RUNS) is not None, seeds)
        else:
            known = {record.name: record for record in read_runs(folder)}
            study = Study(paper, scale, make_plan, _kept(known, folder), lambda job: job.name in known, seeds, False)
        study.go()
    measured = study.measured
    used = {record.name for record in measured.records}
    unused = [] if run else [record for name, record in known.items() if name not in used]
    found = evaluate(
        paper,
        scale,
        study.planned,
        study.results,
        draw_figures(measured, folder),
        seeds,
        study.stopped_words(),
        study.why,
        core_minutes,
    )
    write_results(folder, found, [*measured.records, *unused])
    write_words(found, folder)
    for claim in found.claims:
        print(f"  {claim.verdict}: {claim.claim} ({claim.words})")
    print(f"{paper.paper}: {counted(found.claims)}", flush=True)
    return study.failures if run else []


def _kept(records: Mapping[str, RunRecord], folder: Path) -> Do:
    def do(what: str, jobs: Sequence[Job]) -> Mapping[Job, RunRecord | Failure]:
        new = [job for job in jobs if job.name not in records and job.kind in NO_RUNS]
        made = carry_out_all(new, folder / RUNS, workers=1)
        return {job: records.get(job.name) or made.get(job) or Failure(job, "it has not been run yet") for job in jobs}

    return do
