"""Runs a paper's jobs with a person looking on, and writes what they gave."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fedpriv.common.files import locked
from fedpriv.studies.carrying_out import Failure, carry_out_all, restore
from fedpriv.studies.experiments import plan
from fedpriv.studies.figures import draw_figures
from fedpriv.studies.jobs import Job
from fedpriv.studies.reproduction import Measured, best_of_searches, evaluate
from fedpriv.studies.results import RunRecord, write_results
from fedpriv.studies.spec import Reproduction, Scale
from fedpriv.studies.study_progress import StudyProgress
from fedpriv.studies.study_words import verdict_counts, write_words

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
) -> list[Failure]:
    """Runs what is missing, writes tables, figures, verdicts and records into ``folder``; returns what failed."""
    make_plan = partial(plan, paper, scale, data, folder, download=download, seeds=seeds)
    with locked(folder / RUNS), StudyProgress() as progress:
        restore(folder, folder / RUNS)

        def do(what: str, jobs: Sequence[Job]) -> dict[Job, RunRecord | Failure]:
            return carry_out_all(jobs, folder / RUNS, workers, partial(progress.told, f"{what} scale={scale}"))

        planned = make_plan()
        searched = do(f"{paper.paper} search", planned.searches)
        planned = make_plan(best=best_of_searches(Measured(paper, planned, searched), scale))
        results = do(paper.paper, planned.all_jobs)
    measured = Measured(paper, planned, results)
    found = evaluate(paper, scale, planned, results, draw_figures(measured, folder), seeds)
    write_results(folder, found, measured.records)
    write_words(found, folder)
    for claim in found.claims:
        print(f"  {claim.verdict}: {claim.claim} ({claim.words})")
    counts = verdict_counts(found.claims)
    print(f"{paper.paper}: {', '.join(f'{number} {verdict}' for verdict, number in counts.items())}", flush=True)
    return [result for result in results.values() if isinstance(result, Failure)]
