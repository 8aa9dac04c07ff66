"""The leaderboard: every method calibrated to the same verified epsilon, tuned with the same effort, compared by
accuracy. One board for each threat model (`fedpriv.studies.boards`).

For every method and target: all trials of the search run with one seed on a part of the training pictures and are
tested on the others of these, so the choice sees no test picture (a board of personal models says what it sees); the
best is run with other seeds on the set's own split. What cannot reach a target, or has no finite verified epsilon under
the board's threat model, is found out by planning and listed with the plan's reason; so is what guesses in every trial.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.common.errors import RunFailed
from fedpriv.studies.board_jobs import Key, Prepared, why_not
from fedpriv.studies.board_results import board_of
from fedpriv.studies.carrying_out import NOT_RUN, Failure, Found, Runs
from fedpriv.studies.jobs import Job
from fedpriv.studies.provenance import provenance
from fedpriv.studies.results import Leaderboard, RunRecord
from fedpriv.studies.tuning import costs, tune

NOTE = (
    "The verified epsilon of an entry is that of its final run. It does not include the search: whoever tunes on "
    "private pictures pays for that too (Papernot and Steinke, Hyperparameter Tuning with Renyi Differential Privacy, "
    "ICLR 2022). Every method has the same number of trials. Final runs differ in their seed (partition, initial "
    "model, cohorts, noise); intervals are 95 % t-intervals over seeds, each for itself: of many comparisons one in "
    "twenty misses by chance. Seconds are of runs side by side on all cores, each with the trainer that its board or "
    "method names: they compare methods of one trainer only."
)


def carry_out(boards: Sequence[Prepared], runs: Runs) -> tuple[Leaderboard, list[RunRecord]]:
    """Plans, tunes and runs. Raises `RunFailed` where the reference fails, and where a run is missing that may not be
    made.
    """

    def do(stage: str, jobs: Sequence[Job]) -> Found:
        found = runs.do(stage, jobs)
        missing = sum(isinstance(one, Failure) and one.words == NOT_RUN for one in found.values())
        if missing:
            raise RunFailed(f"run=false: {missing:,} of {len(found):,} runs ({stage}) are missing: run=true")
        return found

    plans = do("plan", planned(boards))
    tuned = tune(reachable(boards, plans), do)
    finals = do("final", [job for own in tuned.values() for job in own.final.values()])
    priced = costs(tuned, do)
    made = [board_of(board, tuned, {**plans, **finals}, priced) for board in boards]
    records = [one if isinstance(one, RunRecord) else one.record for one in runs.made.values()]
    used = [record for record in records if record is not None]
    results = Leaderboard(
        provenance=provenance(used),
        seeds=max(len(board.plan.seeds) for board in boards),
        trials=max(board.trials or 0 for board in made),
        search=f"{len({words for board in made for words in board.search.values()})} search spaces of equal size, "
        "listed with each board",
        note=NOTE,
        boards=tuple(made),
    )
    return results, runs.records(used)


def planned(boards: Sequence[Prepared]) -> list[Job]:
    """What is asked before any run: what each method costs, and what it would cost as published."""
    found = []
    for board in boards:
        found += [key.planned() for key in board.keys]
        found += [Key(board, method, None).published() for method in board.plan.methods]
    return found


def reachable(boards: Sequence[Prepared], plans: Found) -> list[Key]:
    """What is tuned and run: the lines without a target, and every method at every target that its plan meets."""
    return [
        key
        for board in boards
        for key in (*board.lines, *board.keys)
        if key.target is None or why_not(board.plan.threat, plans[key.planned()], key.target) is None
    ]
