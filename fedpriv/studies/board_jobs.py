"""A board's jobs: what its plans, trials and final runs are, and why one has no place at a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.common.errors import OptionError
from fedpriv.privacy.events import Threat
from fedpriv.report.words import ADJACENCIES, OBSERVERS, UNITS, figure, number, pick
from fedpriv.studies import data
from fedpriv.studies.boards import BoardPlan, Method, option_of
from fedpriv.studies.carrying_out import Failure
from fedpriv.studies.jobs import Job
from fedpriv.studies.results import RunRecord
from fedpriv.studies.search import Range, Trial, begin

#: Rounding of what a finished ledger sums against what the plan did.
SLACK = 1 + 1e-9


@dataclass(frozen=True)
class Prepared:
    """A board and what its runs need. where: overrides by which a run finds the pictures; split: the file by which
    tuning runs divide the training examples; tested: one with the same training rows, and the set's own test examples;
    classes: of the examples; final: the file by which final runs are divided, where seeds would divide them otherwise.
    """

    name: str
    plan: BoardPlan
    where: tuple[str, ...] = ()
    split: Path = Path()
    tested: Path = Path()
    classes: int = 0
    final: Path | None = None

    @property
    def lines(self) -> list[Key]:
        """What has no target."""
        return [Key(self, line, None) for line in self.plan.lines]

    @property
    def keys(self) -> list[Key]:
        """The methods at their targets."""
        methods, targets = self.plan.methods, self.plan.targets
        return [Key(self, method, target) for method in methods for target in method.targets or targets]

    @property
    def chance(self) -> float:
        """Accuracy of guessing, in percent."""
        return 100 / self.classes


@dataclass(frozen=True, eq=False)
class Key:
    """A method of a board at a target; None: of a line without one. Equal by their names."""

    board: Prepared
    method: Method
    target: float | None

    @property
    def _names(self) -> tuple[str, str, float | None]:
        return self.board.name, self.method.name, self.target

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self._names == other._names

    def __hash__(self) -> int:
        return hash(self._names)

    @property
    def private(self) -> bool:
        """Whether the choice of its options is part of the guarantee."""
        return self.board.plan.tuning.private and self.target is not None

    @property
    def space(self) -> dict[str, Range]:
        """The ranges: the board's, with the method's own where it has some."""
        return {**self.board.plan.search, **self.method.search}

    def options(self, trial: Sequence[str] = (), target: float | None = None) -> tuple[str, ...]:
        """Overrides of a run; what comes later replaces what came before."""
        plan = self.board.plan
        calibrated = [f"privacy.delta={plan.delta:g}"]
        if target is not None:
            calibrated += [f"privacy.target_epsilon={target:g}", f"privacy.target_observer={plan.observer}"]
        planned = self.method.plan or plan.plan
        chosen = (*self.board.where, *plan.setting, *self.method.overrides, *planned, *trial, *calibrated)
        return tuple({option_of(override): override for override in chosen}.values())

    def planned(self, kind: str = "plan", *extra: str) -> Job:
        """What a run costs, or with ``extra`` what the choice of its options does."""
        return Job(kind, self.options(target=self.target), self.board.plan.seeds[0], extra)

    def published(self) -> Job:
        return Job("plan", (*self.options(), "privacy.variant=published"), self.board.plan.seeds[0])

    def tuning(self, trials: Sequence[Trial]) -> list[Job]:
        split, seed = f"dataset.split={self.board.split}", self.board.plan.tuning.seed
        return [Job("train", (*self.options(trial, self.target), split), seed) for trial in trials]

    def final(self, trial: Trial) -> dict[int, Job]:
        """Seed -> its run."""
        split = () if self.board.final is None else (f"dataset.split={self.board.final}",)
        return {seed: Job("train", (*self.options(trial, self.target), *split), seed) for seed in self.board.plan.seeds}


def prepare(name: str, plan: BoardPlan, pictures: Path, download: bool, folder: Path) -> Prepared:
    """Finds the pictures and writes the tuning split. Raises `OptionError` for a method that cannot be composed, and
    where the pictures are not there.
    """
    from fedpriv.config.compose import compose

    where, own = data.where(plan.dataset, pictures, download), plan.tuning
    if where is None:
        words = f"{plan.dataset} is not there: name its folder, or download=true"
        raise OptionError("data", str(pictures), words)
    board = Prepared(name, plan, where)
    for key in (*board.lines, *(Key(board, method, None) for method in plan.methods)):
        try:
            compose(Job("train", key.options(begin(key.space, own.trials, own.seed).trials[0]), own.seed).overrides)
        except OptionError as error:
            raise OptionError(f"{name}.yaml, {key.method.name}: {error.option}", error.value, error.allowed) from None
    try:
        split, classes = data.held_out(where, plan.dataset, own.pictures, own.seed, folder)
        tested = data.tested_elsewhere(where, split) if own.private else Path()
    except OptionError as error:
        raise OptionError(f"{name}.yaml: tuning.pictures", error.value, error.allowed) from None
    return replace(board, split=split, tested=tested, classes=classes, final=data.own_test(where, plan.dataset, folder))


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
        return plainly(result.words)
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


def plainly(words: str) -> str:
    """An error without the target's own value, so that equal reasons are equal."""
    option, _, rest = words.partition(": ")
    return rest if option.startswith("privacy.target_epsilon=") and rest else words
