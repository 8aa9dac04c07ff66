"""Runs a paper's jobs with a person looking on, and writes what they gave."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fedpriv.studies.figures import draw_figures
from fedpriv.studies.jobs import Failure, Job, carry_out_all
from fedpriv.studies.reproduction import Measured, evaluate, plan
from fedpriv.studies.results import RunRecord, write_results
from fedpriv.studies.spec import Reproduction, Scale
from fedpriv.studies.study_progress import StudyProgress
from fedpriv.studies.words import verdict_counts, write_words

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
    planned = plan(paper, scale, data, download, seeds)
    results: dict[Job, RunRecord | Failure]
    with StudyProgress() as progress:
        told = partial(progress.told, f"{paper.paper} scale={scale}")
        results = carry_out_all(planned.all_jobs, folder / RUNS, workers, told)
    measured = Measured(paper, planned, results)
    found = evaluate(paper, scale, planned, results, draw_figures(measured, folder))
    write_results(folder, found, measured.records)
    write_words(found, folder)
    for claim in found.claims:
        print(f"  {claim.verdict}: {claim.claim} ({claim.words})")
    counts = verdict_counts(found.claims)
    print(f"{paper.paper}: {', '.join(f'{number} {verdict}' for verdict, number in counts.items())}", flush=True)
    return [result for result in results.values() if isinstance(result, Failure)]
