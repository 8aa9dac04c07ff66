"""The leaderboard: every method calibrated to the same verified epsilon, tuned with the same effort, compared by
accuracy. One board for each threat model (`fedpriv.studies.boards`).

For every method and target: all trials of the search run with one seed on a part of the training pictures and are
tested on the others of these, so the choice sees no test picture (a board of personal models says what it sees); the
best is run with other seeds on the set's own split. What cannot reach a target, or has no finite verified epsilon under
the board's threat model, is found out by planning and listed with the plan's reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.common.files import locked
from fedpriv.privacy.events import Threat
from fedpriv.report.words import ADJACENCIES, OBSERVERS, UNITS, figure, number, pick
from fedpriv.studies import data, ranking
from fedpriv.studies.boards import BoardPlan, Method, option_of
from fedpriv.studies.carrying_out import Failure, carry_out_all, process_pool, restore
from fedpriv.studies.jobs import Job
from fedpriv.studies.provenance import provenance
from fedpriv.studies.results import Board, Duel, Entry, Leaderboard, Left, RunRecord

#: Where the jobs' own folders are, below the study's.
RUNS = "runs"
#: Rounding of what a finished ledger sums against what the plan did.
SLACK = 1 + 1e-9

NOTE = (
    "The verified epsilon of an entry is that of its final run. It does not include the search: whoever tunes on "
    "private pictures pays for that too (Papernot and Steinke, Hyperparameter Tuning with Renyi Differential Privacy, "
    "ICLR 2022). Every method has the same number of trials. Final runs differ in their seed (partition, initial "
    "model, cohorts, noise); intervals are 95 % t-intervals over seeds, each for itself: of many comparisons one in "
    "twenty misses by chance. Seconds are of runs side by side on all cores, each with the trainer that its board or "
    "method names: they compare methods of one trainer only."
)
NO_ACCURACY = "a {} has no {} accuracy"
NO_NOISE = "as printed it has a finite price too (verified epsilon {}): only the repaired variant is ranked"

Told = Callable[[str, Job, RunRecord | Failure, int, int], None]


@dataclass(frozen=True)
class Prepared:
    """A board and what its runs need. where: overrides by which a run finds the pictures; split: the file by which
    tuning runs divide the training pictures; classes: of the pictures.
    """

    name: str
    plan: BoardPlan
    where: tuple[str, ...]
    split: Path
    classes: int

    def options(self, method: Method, trial: Sequence[str] = (), target: float | None = None) -> tuple[str, ...]:
        """Overrides of a run; what comes later replaces what came before."""
        calibrated = [f"privacy.delta={self.plan.delta:g}"]
        if target is not None:
            calibrated += [f"privacy.target_epsilon={target:g}", f"privacy.target_observer={self.plan.observer}"]
        last = {option_of(o): o for o in (*self.where, *self.plan.setting, *method.overrides, *trial, *calibrated)}
        return tuple(last.values())

    def planned(self, method: Method, target: float) -> Job:
        return Job("plan", self.options(method, target=target), self.plan.seeds[0])

    def published(self, method: Method) -> Job:
        return Job("plan", (*self.options(method), "privacy.variant=published"), self.plan.seeds[0])

    def tuning(self, method: Method, target: float | None) -> list[Job]:
        split = f"dataset.split={self.split}"
        trials = self.plan.trials(method)
        return [Job("train", (*self.options(method, t, target), split), self.plan.tuning.seed) for t in trials]

    def final(self, method: Method, target: float | None, trial: Sequence[str]) -> list[Job]:
        return [Job("train", self.options(method, trial, target), seed) for seed in self.plan.seeds]


def prepare(name: str, plan: BoardPlan, pictures: Path, download: bool, folder: Path) -> Prepared:
    """Finds the pictures and writes the tuning split. Raises `OptionError` for a method that cannot be composed, and
    where the pictures are not there.
    """
    from fedpriv.config.compose import compose

    where = data.where(plan.dataset, pictures, download)
    if where is None:
        words = f"{plan.dataset} is not there: name its folder, or download=true"
        raise OptionError("data", str(pictures), words)
    for method in (plan.reference, *plan.methods):
        prepared = Prepared(name, plan, where, Path(), 0)
        try:
            compose(prepared.options(method, plan.trials(method)[0]))
        except OptionError as error:
            raise OptionError(f"{name}.yaml, {method.name}: {error.option}", error.value, error.allowed) from None
    try:
        split, classes = data.held_out(where, plan.dataset, plan.tuning.pictures, plan.tuning.seed, folder)
    except OptionError as error:
        raise OptionError(f"{name}.yaml: tuning.pictures", error.value, error.allowed) from None
    return Prepared(name, plan, where, split, classes)


# --- all boards --------------------------------------------------------------------------------------------


def carry_out(
    boards: Sequence[Prepared], folder: Path, workers: int = 0, told: Told = lambda *_: None
) -> tuple[Leaderboard, list[RunRecord]]:
    """Plans, tunes and runs; what is done already is not done again. Raises `RunFailed` where the reference fails."""
    with locked(folder / RUNS), process_pool(workers or os.cpu_count() or 1) as pool:
        restore(folder, folder / RUNS)

        def do(stage: str, jobs: Sequence[Job]) -> Mapping[Job, RunRecord | Failure]:
            return carry_out_all(
                jobs, folder / RUNS, told=lambda job, result, done, of: told(stage, job, result, done, of), pool=pool
            )

        return _in_stages(boards, do)


def _in_stages(
    boards: Sequence[Prepared], do: Callable[[str, Sequence[Job]], Mapping[Job, RunRecord | Failure]]
) -> tuple[Leaderboard, list[RunRecord]]:
    plans = do("plan", [job for board in boards for job in _plans(board)])
    open_ = {board.name: _reachable(board, plans) for board in boards}
    tuned = do("tune", [job for b in boards for method, target in open_[b.name] for job in b.tuning(method, target)])
    chosen: dict[tuple[str, str, float | None], tuple[str, ...]] = {}
    for board in boards:
        for method, target in open_[board.name]:
            if (best := _best(board, method, target, tuned)) is not None:
                chosen[board.name, method.name, target] = best
    finals = do(
        "final",
        [
            job
            for board in boards
            for method, target in open_[board.name]
            if (best := chosen.get((board.name, method.name, target))) is not None
            for job in board.final(method, target, best)
        ],
    )
    made = [_board(board, plans, tuned, chosen, finals) for board in boards]
    records = [result for result in (*tuned.values(), *finals.values()) if isinstance(result, RunRecord)]
    sweeps = {words for board in made for words in board.search.values()}
    results = Leaderboard(
        provenance=provenance(records),
        seeds=max(len(board.plan.seeds) for board in boards),
        trials=max(len(board.plan.trials(board.plan.reference)) for board in boards),
        search=f"{len(sweeps)} search spaces of equal size, listed with each board",
        note=NOTE,
        boards=tuple(made),
    )
    return results, records


def _plans(board: Prepared) -> list[Job]:
    methods = board.plan.methods
    return [
        *(board.planned(method, target) for method in methods for target in board.plan.targets),
        *(board.published(method) for method in methods),
    ]


def _reachable(board: Prepared, plans: Mapping[Job, RunRecord | Failure]) -> list[tuple[Method, float | None]]:
    """What is tuned and run: the reference, and every method at every target that its plan meets."""
    found: list[tuple[Method, float | None]] = [(board.plan.reference, None)]
    for method in board.plan.methods:
        for target in board.plan.targets:
            if why_not(board.plan.threat, plans[board.planned(method, target)], target) is None:
                found.append((method, target))
    return found


def privacy_under(summary: Mapping[str, Any], threat: Threat) -> Mapping[str, Any] | None:
    """The privacy figures of a summary under a threat model, at its delta; None where it has none."""
    own = pick(summary, "privacy") or {}
    for privacy in (own, *(own.get("others") or ())):
        if (privacy["unit"], privacy["adjacency"], privacy["observer"]) == (
            threat.unit,
            threat.adjacency,
            threat.observer,
        ):
            found: Mapping[str, Any] = privacy
            return found
    return None


def why_not(threat: Threat, result: RunRecord | Failure, target: float | None = None) -> str | None:
    """Why a plan or run has no place at a target of a board; None where it has one."""
    if isinstance(result, Failure):
        return _plainly(result.words)
    found = privacy_under(result.summary, threat)
    if found is None:
        own = pick(result.summary, "privacy")
        return (
            f"it protects {UNITS[own['unit']]} ({ADJACENCIES[own['adjacency']]}) against "
            f"{OBSERVERS[own['observer']]}: another threat model, whose epsilons are not comparable"
        )
    verified = number(found["verified_epsilon"])
    if verified is None or not np.isfinite(verified):
        return "; ".join(found["reasons"]) or "no finite bound"
    if target is not None and verified > target * SLACK:
        return f"its verified epsilon is {figure(verified)}, above the target"
    return None


def _plainly(words: str) -> str:
    """An error without the target's own value, so that equal reasons are equal."""
    option, _, rest = words.partition(": ")
    return rest if option.startswith("privacy.target_epsilon=") and rest else words


def _tried(
    board: Prepared, method: Method, target: float | None, tuned: Mapping[Job, RunRecord | Failure]
) -> list[tuple[float, tuple[str, ...]]]:
    """(accuracy on the pictures kept for tuning, trial) of the trials that ran and have one."""
    found = []
    for trial, job in zip(board.plan.trials(method), board.tuning(method, target), strict=True):
        if isinstance(result := tuned[job], RunRecord):
            accuracy = number(pick(result.summary, "accuracy", board.plan.measure))
            if accuracy is not None:
                found.append((accuracy, trial))
    return found


def _best(
    board: Prepared, method: Method, target: float | None, tuned: Mapping[Job, RunRecord | Failure]
) -> tuple[str, ...] | None:
    """The trial with the highest accuracy, the first of equals."""
    found = _tried(board, method, target, tuned)
    return max(found, key=lambda pair: pair[0])[1] if found else None


# --- one board ---------------------------------------------------------------------------------------------


def _board(
    board: Prepared,
    plans: Mapping[Job, RunRecord | Failure],
    tuned: Mapping[Job, RunRecord | Failure],
    chosen: Mapping[tuple[str, str, float | None], tuple[str, ...]],
    finals: Mapping[Job, RunRecord | Failure],
) -> Board:
    plan = board.plan
    reference = _records(board, plan.reference, None, chosen, tuned, finals)
    if isinstance(reference, str):
        raise RunFailed(f"{board.name}: {plan.reference.name} cannot be run: {reference}")
    entries: list[Entry] = []
    left: list[Left] = []
    duels: list[Duel] = []
    words: list[str] = []
    for target in plan.targets:
        ran: dict[str, list[RunRecord]] = {}
        for method in plan.methods:
            reason = why_not(plan.threat, plans[board.planned(method, target)], target)
            records = reason or _records(board, method, target, chosen, tuned, finals)
            if isinstance(records, str):
                left.append(Left(method=method.name, label=method.label, reason=records, target=target))
            else:
                ran[method.name] = records
        methods = {method.name: method for method in plan.methods}
        contenders = [
            ranking.Contender(name, methods[name].label, methods[name].idea, _accuracies(board, records))
            for name, records in ran.items()
        ]
        for rank, tied, contender in ranking.ranked(contenders):
            method, records = methods[contender.method], ran[contender.method]
            tried = len(_tried(board, method, target, tuned))
            entries.append(_entry(board, method, target, chosen, records, rank, tied, tried))
        for found in ranking.compared(contenders):
            pair = {"method": found.one.method, "against": found.other.method}
            duels.append(Duel(target=target, **pair, difference=found.difference, outcome=found.outcome))
        words += ranking.verdicts(target, contenders, 100 / board.classes)
    left = [*_collapsed(left, plan.targets), *_published(board, plans)]
    return Board(
        name=board.name,
        title=plan.title,
        unit=plan.unit,
        adjacency=plan.adjacency,
        observer=plan.observer,
        delta=plan.delta,
        measure=plan.measure,
        trials=len(plan.trials(plan.reference)),
        setting=plan.words,
        targets=plan.targets,
        reference=ranking.estimate(_accuracies(board, reference).values()),
        entries=tuple(entries),
        left=tuple(left),
        verdicts=tuple(words),
        duels=tuple(duels),
        chance=100 / board.classes if plan.measure == "final" else None,  # own classes are fewer
        search={method.name: "; ".join(plan.sweeps(method)) for method in (plan.reference, *plan.methods)},
    )


def _records(
    board: Prepared,
    method: Method,
    target: float | None,
    chosen: Mapping[tuple[str, str, float | None], tuple[str, ...]],
    tuned: Mapping[Job, RunRecord | Failure],
    finals: Mapping[Job, RunRecord | Failure],
) -> list[RunRecord] | str:
    """The final runs, one for each seed, or why there are none."""
    trial = chosen.get((board.name, method.name, target))
    if trial is None:
        failed = [r.words for job in board.tuning(method, target) if isinstance(r := tuned[job], Failure)]
        return _plainly(failed[0]) if failed else NO_ACCURACY.format("tuning run", board.plan.measure)
    found: list[RunRecord] = []
    for job in board.final(method, target, trial):
        result = finals[job]
        if target is not None and (reason := why_not(board.plan.threat, result, target)) is not None:
            return reason
        if isinstance(result, Failure):
            return _plainly(result.words)
        if number(pick(result.summary, "accuracy", board.plan.measure)) is None:
            return NO_ACCURACY.format("final run", board.plan.measure)
        found.append(result)
    return found


def _accuracies(board: Prepared, records: Sequence[RunRecord]) -> dict[int, float]:
    """Seed -> percent."""
    return {record.seed: 100 * float(record.summary["accuracy"][board.plan.measure]) for record in records}


def _entry(
    board: Prepared,
    method: Method,
    target: float,
    chosen: Mapping[tuple[str, str, float | None], tuple[str, ...]],
    records: Sequence[RunRecord],
    rank: int,
    tied: bool,
    tried: int,
) -> Entry:
    threat, trial = board.plan.threat, chosen[board.name, method.name, target]
    privacies = [privacy_under(record.summary, threat) or {} for record in records]
    return Entry(
        method=method.name,
        label=method.label,
        paper=method.paper,
        target=target,
        verified_epsilon=max(number(privacy["verified_epsilon"]) or 0.0 for privacy in privacies),
        accuracy=ranking.estimate(_accuracies(board, records).values()),
        bytes_up=float(np.mean([record.summary["traffic"]["bytes_up"] for record in records])),
        bytes_down=float(np.mean([record.summary["traffic"]["bytes_down"] for record in records])),
        seconds=ranking.estimate([record.summary["timing"]["total_s"] for record in records]),
        chosen={override.partition("=")[0]: override.partition("=")[2] for override in trial},
        rank=rank,
        runs=tuple(record.name for record in records),
        command=records[0].command,
        idea=method.idea,
        tied=tied,
        tried=tried,
    )


def _collapsed(left: Sequence[Left], targets: Sequence[float]) -> list[Left]:
    """One line in place of one for each target where the reason is the same at all of them."""
    found: list[Left] = []
    for one in left:
        same = [other for other in left if (other.method, other.reason) == (one.method, one.reason)]
        line = one.model_copy(update={"target": None}) if len(same) == len(targets) else one
        if line not in found:
            found.append(line)
    return found


def _published(board: Prepared, plans: Mapping[Job, RunRecord | Failure]) -> list[Left]:
    """The published variants: planned, not trained."""
    found = []
    for method in board.plan.methods:
        result = plans[board.published(method)]
        reason = why_not(board.plan.threat, result)
        if reason is None and isinstance(result, RunRecord):
            privacy = privacy_under(result.summary, board.plan.threat) or {}
            reason = NO_NOISE.format(figure(number(privacy["verified_epsilon"])))
        found.append(Left(method=method.name, label=method.label, reason=reason or "", variant="published"))
    return found
