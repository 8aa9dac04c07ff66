"""The leaderboard: every method calibrated to the same verified epsilon, tuned with the same effort, compared by
accuracy. One board for each threat model (`fedpriv.studies.boards`).

For every method and target: all trials of the search run with one seed on a part of the training pictures and are
tested on the others of these, so the choice sees no test picture (a board of personal models says what it sees); the
best is run with other seeds on the set's own split. What cannot reach a target, or has no finite verified epsilon under
the board's threat model, is found out by planning and listed with the plan's reason; so is what guesses in every trial.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fedpriv.common.errors import RunFailed
from fedpriv.common.files import locked
from fedpriv.report.words import number, percent, pick
from fedpriv.studies import private_tuning, tuning_cost
from fedpriv.studies.board_jobs import Found, Prepared, plainly, why_not
from fedpriv.studies.board_results import NO_ACCURACY, Key, Tuned, board_of
from fedpriv.studies.carrying_out import Failure, carry_out_all, find, process_pool, restore
from fedpriv.studies.jobs import NO_RUNS, Job
from fedpriv.studies.provenance import provenance
from fedpriv.studies.ranking import GUESSING
from fedpriv.studies.results import Board, Leaderboard, RunRecord
from fedpriv.studies.search import Search, Trial

#: Where the jobs' own folders are, below the study's.
RUNS = "runs"

NOTE = (
    "The verified epsilon of an entry is that of its final run. It does not include the search: whoever tunes on "
    "private pictures pays for that too (Papernot and Steinke, Hyperparameter Tuning with Renyi Differential Privacy, "
    "ICLR 2022). Every method has the same number of trials. Final runs differ in their seed (partition, initial "
    "model, cohorts, noise); intervals are 95 % t-intervals over seeds, each for itself: of many comparisons one in "
    "twenty misses by chance. Seconds are of runs side by side on all cores, each with the trainer that its board or "
    "method names: they compare methods of one trainer only."
)

Told = Callable[[str, Job, RunRecord | Failure, int, int], None]
Do = Callable[[str, Sequence[Job]], Found]


def carry_out(
    boards: Sequence[Prepared],
    folder: Path,
    workers: int = 0,
    told: Told = lambda *_: None,
    may_run: bool = True,
) -> tuple[Leaderboard, list[RunRecord]]:
    """Plans, tunes and runs; what is done already is not done again. Raises `RunFailed` where the reference fails, and
    unless it may_run, where a run is missing. Without may_run, records that nothing rests on are returned too.
    """
    with locked(folder / RUNS), process_pool(workers or os.cpu_count() or 1) as pool:
        there = restore(folder, folder / RUNS, durable=may_run)
        done: dict[Job, RunRecord | Failure] = {}

        def do(stage: str, jobs: Sequence[Job]) -> Found:
            runs = {job for job in jobs if job.kind not in NO_RUNS}
            if not may_run and (missing := sum(find(job, folder / RUNS) is None for job in runs)):
                raise RunFailed(f"run=false: {missing:,} of {len(runs):,} runs ({stage}) are missing: run=true")
            found = carry_out_all(
                jobs, folder / RUNS, told=lambda job, result, done, of: told(stage, job, result, done, of), pool=pool
            )
            done.update(found)
            return found

        made = _in_stages(boards, do)
    records = [result if isinstance(result, RunRecord) else result.record for result in done.values()]
    kept = [record for record in records if record is not None]
    spaces = {words for board in made for words in board.search.values()}
    results = Leaderboard(
        provenance=provenance(kept),
        seeds=max(len(board.plan.seeds) for board in boards),
        trials=max(board.trials or 0 for board in made),
        search=f"{len(spaces)} search spaces of equal size, listed with each board",
        note=NOTE,
        boards=tuple(made),
    )
    used = {record.name for record in kept}
    return results, kept if may_run else [*kept, *(record for record in there if record.name not in used)]


def planned(boards: Sequence[Prepared], folder: Path, workers: int = 0, told: Told = lambda *_: None) -> Found:
    """The plans alone."""
    with locked(folder / RUNS), process_pool(workers or os.cpu_count() or 1) as pool:
        restore(folder, folder / RUNS)
        jobs = [job for board in boards for job in _plans(board)]
        return carry_out_all(jobs, folder / RUNS, told=lambda *done: told("plan", *done), pool=pool)


def _in_stages(boards: Sequence[Prepared], do: Do) -> list[Board]:
    plans = do("plan", [job for board in boards for job in _plans(board)])
    open_ = {key: board for board in boards for key in reachable(board, plans)}
    privately = {key: board for key, board in open_.items() if board.plan.tuning.private and key.target is not None}
    tuned = _tune({key: board for key, board in open_.items() if key not in privately}, do)
    tuned |= private_tuning.tune(privately, do)
    finals = do("final", [job for own in tuned.values() for job in own.final.values()])
    ranked = {key: board for key, board in open_.items() if tuned[key].final}
    costs = tuning_cost.of_all(ranked, {key: len(tuned[key].search.trials) for key in ranked}, do)
    return [board_of(board, plans, tuned, finals, costs) for board in boards]


def _plans(board: Prepared) -> list[Job]:
    methods = board.plan.methods
    return [
        *(board.planned(method, target) for method in methods for target in board.plan.targets),
        *(board.published(method) for method in methods),
    ]


def reachable(board: Prepared, plans: Found) -> list[Key]:
    """What is tuned and run: the lines without a target, and every method at every target that its plan meets."""
    return [
        *(Key(board.name, line, None) for line in board.plan.lines),
        *(
            Key(board.name, method, target)
            for method in board.plan.methods
            for target in board.plan.targets
            if why_not(board.plan.threat, plans[board.planned(method, target)], target) is None
        ),
    ]


# --- tuning ------------------------------------------------------------------------------------------------


def _tune(open_: Mapping[Key, Prepared], do: Do) -> dict[Key, Tuned]:
    """Every search, widened by the board's rule while any of a board that learns ends at an edge; and the final runs'
    jobs. Where all trials guess, the best of them is chance, and says nothing of its range.
    """
    searches = {key: board.plan.begin(key.method) for key, board in open_.items()}
    results = dict(do("tune", list(_trials(open_, searches))))
    for time in range(max((board.plan.tuning.widenings for board in open_.values()), default=0)):
        best = {key: _best(board, key, searches[key], results) for key, board in open_.items()}
        wide = {
            key.board
            for key, board in open_.items()
            if searches[key].sides(best[key]) and not _guesses(board, _tried(board, key, searches[key], results))
        }
        grow = {key: board for key, board in open_.items() if key.board in wide and time < board.plan.tuning.widenings}
        if not grow:
            break
        for key, board in grow.items():
            own = board.plan.tuning
            searches[key] = searches[key].further(best[key], own.further, own.seed, own.factor)
        results |= do(f"tune, wider ({time + 1})", list(_trials(grow, searches)))
    return {key: _chosen(board, key, searches[key], results) for key, board in open_.items()}


def _trials(open_: Mapping[Key, Prepared], searches: Mapping[Key, Search]) -> Iterator[Job]:
    for key, board in open_.items():
        yield from board.tuning(key.method, key.target, searches[key].trials)


def _tried(board: Prepared, key: Key, search: Search, results: Found) -> list[tuple[float, Trial]]:
    """(accuracy on the pictures kept for tuning, trial) of the trials that ran and have one."""
    found = []
    for trial, job in zip(search.trials, board.tuning(key.method, key.target, search.trials), strict=True):
        if isinstance(result := results[job], RunRecord):
            accuracy = number(pick(result.summary, "accuracy", board.plan.measure))
            if accuracy is not None:
                found.append((accuracy, trial))
    return found


def _guesses(board: Prepared, tried: Sequence[tuple[float, Trial]]) -> bool:
    most = max((accuracy for accuracy, _ in tried), default=0.0)
    return board.plan.measure == "final" and most < GUESSING / board.classes


def _best(board: Prepared, key: Key, search: Search, results: Found) -> Trial | None:
    """The trial with the highest accuracy, the first of equals."""
    found = _tried(board, key, search, results)
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _chosen(board: Prepared, key: Key, search: Search, results: Found) -> Tuned:
    plan, tried = board.plan, _tried(board, key, search, results)
    if not tried:
        failed = [r.words for job in _trials({key: board}, {key: search}) if isinstance(r := results[job], Failure)]
        reason = plainly(failed[0]) if failed else NO_ACCURACY.format("tuning run", plan.measure)
        return Tuned(search, reason=reason)
    accuracy, trial = max(tried, key=lambda pair: pair[0])
    if key.target is not None and _guesses(board, tried):
        why = f": {key.method.why}" if key.method.why else ""
        reason = f"it guesses: the best of {len(tried)} trials has {percent(accuracy)} on held-out pictures{why}"
        return Tuned(search, tried=len(tried), reason=reason)
    return Tuned(
        search,
        tried=len(tried),
        chosen={option: value for option, _, value in (override.partition("=") for override in trial)},
        final=dict(zip(plan.seeds, board.final(key.method, key.target, trial), strict=True)),
        at_edge=tuple(f"{option}, {side} end" for option, side in search.sides(trial).items()),
    )
