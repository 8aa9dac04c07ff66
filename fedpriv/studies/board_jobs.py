"""A board's jobs: what its plans, trials and final runs are, and why one has no place at a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from fedpriv.studies.search import Trial

#: Rounding of what a finished ledger sums against what the plan did.
SLACK = 1 + 1e-9

#: Of a job: its record, or why there is none.
Found = Mapping[Job, RunRecord | Failure]


@dataclass(frozen=True)
class Prepared:
    """A board and what its runs need. where: overrides by which a run finds the pictures; split: the file by which
    tuning runs divide the training pictures; tested: one with the same training rows, and the set's own test pictures;
    classes: of the pictures.
    """

    name: str
    plan: BoardPlan
    where: tuple[str, ...]
    split: Path
    tested: Path
    classes: int

    def options(self, method: Method, trial: Sequence[str] = (), target: float | None = None) -> tuple[str, ...]:
        """Overrides of a run; what comes later replaces what came before."""
        calibrated = [f"privacy.delta={self.plan.delta:g}"]
        if target is not None:
            calibrated += [f"privacy.target_epsilon={target:g}", f"privacy.target_observer={self.plan.observer}"]
        planned = method.plan or self.plan.plan
        chosen = (*self.where, *self.plan.setting, *method.overrides, *planned, *trial, *calibrated)
        return tuple({option_of(override): override for override in chosen}.values())

    def planned(self, method: Method, target: float) -> Job:
        return Job("plan", self.options(method, target=target), self.plan.seeds[0])

    def published(self, method: Method) -> Job:
        return Job("plan", (*self.options(method), "privacy.variant=published"), self.plan.seeds[0])

    def tuning(self, method: Method, target: float | None, trials: Sequence[Trial]) -> list[Job]:
        split = f"dataset.split={self.split}"
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
    for method in (*plan.lines, *plan.methods):
        prepared = Prepared(name, plan, where, Path(), Path(), 0)
        try:
            trial = plan.begin(method).trials[0]
            compose(Job("train", prepared.options(method, trial), plan.tuning.seed).overrides)
        except OptionError as error:
            raise OptionError(f"{name}.yaml, {method.name}: {error.option}", error.value, error.allowed) from None
    try:
        split, classes = data.held_out(where, plan.dataset, plan.tuning.pictures, plan.tuning.seed, folder)
        tested = data.tested_elsewhere(where, split) if plan.tuning.private else Path()
    except OptionError as error:
        raise OptionError(f"{name}.yaml: tuning.pictures", error.value, error.allowed) from None
    return Prepared(name, plan, where, split, tested, classes)


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
