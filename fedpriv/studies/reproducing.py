"""Runs a paper's jobs with a person looking on, and writes what they gave."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fedpriv.common.printing import say
from fedpriv.studies.adding_seeds import Study
from fedpriv.studies.carrying_out import Failure, study_runs
from fedpriv.studies.experiments import plan
from fedpriv.studies.figures import draw_figures
from fedpriv.studies.reproduction import evaluate
from fedpriv.studies.results import write_results
from fedpriv.studies.spec import Reproduction, Scale
from fedpriv.studies.study_progress import StudyProgress
from fedpriv.studies.study_words import counted, write_words


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
    fresh: bool = False,
) -> list[Failure]:
    """Runs what is missing, writes tables, figures, verdicts and records into ``folder``; returns what failed. run:
    False evaluates what is there (`fedpriv.studies.carrying_out.Runs`); records that nothing rests on (a look that is
    there in part) stay in runs.jsonl. fresh: also the tables with fresh seeds; what is there of them counts without it.
    """
    if core_minutes is not None:
        paper = paper.with_core_minutes(core_minutes)
    make_plan = partial(plan, paper, scale, data, folder, download=download, seeds=seeds, fresh=fresh or not run)
    with StudyProgress() as progress, study_runs(folder, workers, run, progress.told) as runs:
        study = Study(paper, scale, make_plan, runs, seeds)
        study.go()
    measured = study.measured
    found = evaluate(measured, draw_figures(measured, folder), study.stopped_words(), study.why, core_minutes)
    write_results(folder, found, runs.records(measured.records))
    write_words(found, folder)
    for claim in found.claims:
        verdict = f"beyond the paper ({claim.beyond})" if claim.beyond else claim.verdict
        say(f"  {verdict}: {claim.claim} ({claim.words})")
    listed = [claim for claim in found.claims if not claim.beyond]
    say(f"{paper.paper}: {counted(listed)}", flush=True)
    return [one for one in runs.made.values() if isinstance(one, Failure)] if run else []
