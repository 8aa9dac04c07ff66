"""One finished run under attack: its data and models, the models trained for the attack, and the controls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file

from fedpriv.attacks import confidence_series, controls, lira, ml_leaks, shadows, white_box
from fedpriv.attacks.controls import Control
from fedpriv.attacks.shadows import Job, Shelf, draw_rows
from fedpriv.attacks.subject import Scored, Subject, Trained
from fedpriv.attacks.targets import FEWEST, Rows, Sides, Targets, TooFewExamples, choose, without_copies
from fedpriv.attacks.view import View
from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.common.seeds import generator
from fedpriv.common.vectors import FloatVector
from fedpriv.config.schema import Config
from fedpriv.data import FederatedData
from fedpriv.data.load import load_dataset, load_pool
from fedpriv.data.splits import read_split
from fedpriv.engines.worker import Worker
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.planning import schedule
from fedpriv.training.flat_model import FlatModel

ATTACKS: dict[str, Callable[[View, Subject, Targets], Scored]] = {
    "confidence_series": confidence_series.attack,
    "ml_leaks": ml_leaks.attack,
    "white_box": white_box.attack,
    "lira": lira.attack,
}

#: Shadow models of the positive control: few suffice against an overfitted model.
CONTROL_SHADOWS = 8

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Result:
    """An attack on a run, and its controls. ``scored`` must not be shown where one of them failed."""

    attack: str
    scored: Scored
    controls: tuple[Control, Control]
    shadows: int
    shadow_examples: int

    @property
    def shown(self) -> bool:
        return all(control.passed for control in self.controls)


class Experiment:
    """Everything that attacks on one run share. Raises a `FedprivError` where the run allows no attack."""

    def __init__(self, folder: RunFolder, config: Config, progress: Progress = lambda what, ready, of: None) -> None:
        if not folder.finished:
            raise RunFolderError(f"{folder.path}: the run has not finished; resume={folder.path} continues it")
        if config.partition.name == "resampled":
            words = "clients share pictures, so membership of a picture is ambiguous; attack a run that partitions them"
            raise OptionError("partition", "resampled", words)
        # Where the run was trained no longer matters.
        engine = config.engine.model_copy(update={"device": "auto", "name": "inprocess"})
        self.folder, self.config = folder, config.model_copy(update={"engine": engine})
        self.options, self.progress = config.attack, progress
        self.worker = Worker(self.config)
        self.shelf = Shelf(folder.path / "attacks" / "shadows", self.options.workers)
        data = self.worker.data
        split = config.dataset.split
        self.pool_seed = config.seed if split is None else read_split(split).seed
        self.pool = load_pool(config.dataset, self.pool_seed, config.features)
        self.view = View(self.worker.model, self.pool)
        self.trained_on = int(data.partition.num_train.sum())
        self.targets = self._choose(data)

    def _choose(self, data: FederatedData) -> Targets:
        """Members: training pictures of clients that took part. Non-members: reported test pictures and training
        pictures that no client has; none that equals any client's training picture.
        """
        clients = [data.train_indices(client) for client in sorted(self._participants())]
        used = data.partition.used
        if self.config.dataset.split is None:
            training = len(load_dataset(self.config.dataset, self.pool_seed).train)
            outsiders = np.concatenate([np.setdiff1d(np.arange(training), used), training + data.test])
        else:
            outsiders = data.test
        outsiders = without_copies(self.pool.train.images, used, outsiders)
        return choose(
            clients,
            outsiders,
            np.asarray(self.pool.train.labels),
            most=self.options.members,
            known_share=self.options.known_share,
            rng=generator(self.options.seed, "targets"),
        )

    def _participants(self) -> set[int]:
        """Clients that released anything; for a method without a ledger, those in any cohort."""
        released = {entry.client for entry in self.folder.ledger.read().entries if entry.client >= 0}
        return released or set(np.flatnonzero(schedule(self.config)).tolist())

    # --- the run's own models ----------------------------------------------------------------------------

    @cached_property
    def model(self) -> Trained:
        final = read_model(self.folder.path / "model.safetensors", self.worker.model)
        kept = {number: read_model(path, self.worker.model) for number, path in self.folder.snapshots().items()}
        return Trained(final, kept)

    def check(self, attack: str) -> None:
        """Raises where this run lacks what the attack needs."""
        if attack == "confidence_series" and not self.folder.snapshots():
            raise RunFolderError(
                f"{self.folder.path}: attack=confidence_series needs the global models of several rounds, and the run "
                "has no snapshots/: train it with attack.keep_snapshots=true (and attack.snapshot_every=N, at most "
                "its rounds)"
            )

    # --- models trained for the attack --------------------------------------------------------------------------------

    def _seed(self, *key: int | str) -> int:
        return int(generator(self.config.seed, self.options.seed, *key).integers(2**31))

    def _like(self, *key: int | str, snapshots: tuple[int, ...] = ()) -> Job:
        rows = draw_rows(self.targets.spare, self.trained_on, self.options.seed, *key)
        job = shadows.like(
            self.config, rows, self.targets.spare, self.trained_on, seed=self._seed(*key), snapshots=snapshots
        )
        return self._of_pool(job)

    def _of_pool(self, job: Job) -> Job:
        """Rows refer to the run's own pool, whatever the job's seed."""
        return replace(job, pool_seed=self.pool_seed)

    def shadow_jobs(self, attack: str) -> list[Job]:
        count = {"ml_leaks": 1, "lira": self.options.shadows}.get(attack, 0)
        return [self._like("shadow", number) for number in range(count)]

    def negative_job(self) -> Job:
        return self._like("negative", snapshots=tuple(self.folder.snapshots()))

    def control_targets(self) -> list[Targets]:
        """Targets of each overfitted model: disjoint parts of the evaluated examples; the known ones are reused where
        there are too few.
        """
        half = self.options.control_examples // 2
        evaluated, known = self.targets.evaluated, self.targets.known
        count = min(self.options.control_models, len(evaluated.members) // half)
        half = half if count else min(len(evaluated.members), half)
        learnt = min(half, len(known.members))
        if learnt < FEWEST // 2:
            raise TooFewExamples(f"{len(known.members)} known members are too few for the positive control")
        parts = []
        for number in range(max(1, count)):
            mine = slice(number * half, (number + 1) * half)
            again = (number * learnt + np.arange(learnt)) % len(known.members)
            parts.append(
                Targets(
                    Sides(evaluated.members[mine], evaluated.others[mine]),
                    Sides(known.members[again], known.others[again]),
                    self.targets.spare,
                )
            )
        return parts

    def control_jobs(self, attack: str, parts: list[Targets]) -> tuple[list[Job], list[Job]]:
        """(overfitted models, their shadow models)."""
        spare = self.targets.spare

        def job(rows: Rows, *key: int | str) -> Job:
            return self._of_pool(shadows.overfitted(self.config, np.sort(rows), spare, seed=self._seed(*key)))

        models = [
            job(np.concatenate([part.evaluated.members, part.known.members]), "positive", number)
            for number, part in enumerate(parts)
        ]
        size = len(models[0].rows)
        count = {"ml_leaks": 1, "lira": CONTROL_SHADOWS}.get(attack, 0)
        beside = [
            job(draw_rows(spare, size, self.options.seed, "control shadow", number), "control shadow", number)
            for number in range(count)
        ]
        return models, beside

    # --- attacks -----------------------------------------------------------------------------------------

    def run(self, attack: str) -> Result:
        """The attack on the run, with both controls."""
        self.check(attack)
        work = ATTACKS[attack]
        positive = controls.positive(self._positive(attack))
        jobs = self.shadow_jobs(attack)
        beside = self._train("shadow models and the negative control", [*jobs, self.negative_job()])
        negative = controls.negative(work(self.view, Subject(beside[-1], beside[:-1]), self.targets))
        scored = work(self.view, Subject(self.model, beside[:-1]), self.targets)
        return Result(attack, scored, (positive, negative), len(jobs), len(beside[-1].rows))

    def _positive(self, attack: str) -> Scored:
        parts = self.control_targets()
        models, beside = self.control_jobs(attack, parts)
        trained = self._train("positive control", [*models, *beside])
        subjects = [Subject(model, trained[len(models) :]) for model in trained[: len(models)]]
        scored = [ATTACKS[attack](self.view, subject, part) for subject, part in zip(subjects, parts, strict=True)]
        return Scored.pooled(scored)

    def _train(self, what: str, jobs: list[Job]) -> list[Trained]:
        return self.shelf.models(jobs, lambda ready, of: self.progress(what, ready, of))


def read_model(path: Path, model: FlatModel) -> FloatVector:
    """The flat parameters [d] of a saved model; `RunFolderError` where it is of another model or damaged."""
    try:
        named = load_file(path)
        parts = [named[name] for name in model.layout.names]
    except (OSError, SafetensorError, KeyError) as error:
        raise RunFolderError(f"{path}: the model cannot be read ({error})") from None
    if [tuple(part.shape) for part in parts] != list(model.layout.shapes):
        raise RunFolderError(f"{path}: not the model that config.yaml names")
    flat: FloatVector = np.concatenate([part.numpy().reshape(-1) for part in parts])
    return flat


def attack_names(given: str) -> list[str]:
    """The attacks of ``attack=NAME,NAME`` or ``attack=all``; `OptionError` for an unknown name."""
    names = list(ATTACKS) if given == "all" else given.split(",")
    for name in names:
        if name not in ATTACKS:
            raise OptionError("attack", given, f"allowed: {', '.join(ATTACKS)}, several with commas, or all")
    return list(dict.fromkeys(names))
