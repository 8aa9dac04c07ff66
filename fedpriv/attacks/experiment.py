"""One finished run under attack: its data and models, the models trained for the attack, and the controls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpriv.attacks import (
    confidence_series,
    controls,
    inversion,
    lira,
    member_inputs,
    ml_leaks,
    rmia,
    shadows,
    update_scores,
    white_box,
)
from fedpriv.attacks.controls import Control
from fedpriv.attacks.member_inputs import Inputs
from fedpriv.attacks.shadows import Job, Shelf, read_updates
from fedpriv.attacks.subject import Scored, Subject, Trained
from fedpriv.attacks.targets import FEWEST, Rows, Sides, Targets, TooFewExamples, choose, singles
from fedpriv.attacks.view import View
from fedpriv.client.build import unit_of
from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.common.messages import FloatVector
from fedpriv.common.run_files import tensors_in
from fedpriv.common.seeds import generator
from fedpriv.config.schema import Config
from fedpriv.data import FederatedData
from fedpriv.data.load import load_dataset, load_pool
from fedpriv.data.partition import read_split
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.tasks import Classification
from fedpriv.report.views import PRIVATE
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.planning import schedule
from fedpriv.runs.round_updates import RoundUpdates
from fedpriv.training.sequential import FlatModel

ATTACKS: dict[str, Callable[[View, Subject, Targets], Scored]] = {
    "confidence_series": confidence_series.attack,
    "ml_leaks": ml_leaks.attack,
    "white_box": white_box.attack,
    "lira": lira.attack,
    "rmia": rmia.attack,
    "update_product": update_scores.product,
    "update_cosine": update_scores.cosine,
    "update_likelihood": update_scores.likelihood,
    "inversion": inversion.attack,
}
#: Attacks that read single clients' updates.
OF_UPDATES = ("update_product", "update_cosine", "update_likelihood", "inversion")


#: Shadow models of the positive control: few suffice against an overfitted model.
CONTROL_SHADOWS = 8

#: Numbers of rounds.
Rounds = tuple[int, ...]

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
            words = "clients share examples, so membership of an example is ambiguous; attack a run with a partition"
            raise OptionError("partition", "resampled", words)
        if unit_of(config) == "person":
            words = "coins choose single rows, and two rows that change places change two persons"
            raise OptionError("privacy.unit", "person", f"{words}; allowed: a run of another unit, or `fedpriv audit`")
        if config.dataset.name == "on_nodes":
            words = "its members are at its nodes; attack a simulated run of the same options"
            raise OptionError("dataset", "on_nodes", words)
        # Where the run was trained no longer matters.
        engine = config.engine.model_copy(update={"device": "auto", "name": "inprocess"})
        self.folder, self.config = folder, config.model_copy(update={"engine": engine})
        self.options, self.progress = config.attack, progress
        self.worker = Worker(self.config)
        self.shelf = Shelf(folder.path / PRIVATE / "attacks" / "shadows", self.options.workers)
        data = self.worker.data
        split = config.dataset.split
        self.pool_seed = config.seed if split is None else read_split(split).seed
        column = getattr(config.partition, "column", None)
        self.pool = load_pool(config.dataset, self.pool_seed, config.features, column)
        if not isinstance(self.pool.task, Classification):
            words = f"its task is {self.pool.task.name}, and attacks read the probabilities of classes"
            raise OptionError("run", str(folder.path), f"{words}; allowed: a run of classes")
        self.view = View(self.worker.model, self.pool)
        self.trained_on = int(data.partition.num_train.sum())
        self.targets = self._choose(data)

    def _choose(self, data: FederatedData) -> Targets:
        """Members: training examples of clients that took part. Non-members: training examples that the run's seed left
        out; where these are too few, or no coins chose the members, test examples as well.
        """
        participants = sorted(self._participants())
        used, held_out = data.partition.used, np.zeros(0, np.int64)
        if self.config.dataset.split is None:
            training = len(load_dataset(self.config.dataset, self.pool_seed).train)
            held_out, tested = np.setdiff1d(np.arange(training), used), training + data.test
        else:
            tested = data.test
        self.public = tested
        train, partition = self.pool.train, self.config.partition
        kinds = np.asarray(train.targets)
        coins = train.unit is None and "." not in getattr(partition, "partitioner", "")
        if getattr(partition, "column", None) is not None:
            coins &= train.site is not None
            kinds = kinds * (len(self.pool.sites) + 1) + (0 if train.site is None else train.site)

        def chosen(outsiders: Rows, by_coin: bool) -> Targets:
            single = singles(self.pool.train.inputs, np.concatenate([used, outsiders]))
            clients = [data.train_indices(client) for client in participants]
            return choose(
                [rows[np.isin(rows, single)] for rows in clients],
                outsiders[np.isin(outsiders, single)],
                kinds,
                by_coin=by_coin,
                most=self.options.members,
                known_share=self.options.known_share,
                rng=generator(self.options.seed, "targets"),
            )

        owner = {int(row): client for client in participants for row in data.train_indices(client)}
        with suppress(TooFewExamples):
            if coins:
                return chosen(held_out, True).at(owner)
        found = chosen(np.concatenate([held_out, tested]), False)
        self.public = np.sort(found.pairs.rows)
        return found.at(owner)

    def _participants(self) -> set[int]:
        """Clients that released anything; for a method without a ledger, those in any cohort."""
        released = {entry.client for entry in self.folder.ledger.read().entries if entry.client >= 0}
        return released or set(np.flatnonzero(schedule(self.config)).tolist())

    # --- the run's own models ----------------------------------------------------------------------------

    @cached_property
    def inputs(self) -> Inputs:
        """Whether members and non-members differ as inputs."""
        pairs = Targets(self.targets.evaluated, self.targets.known).pairs
        return member_inputs.compare(self.pool.train.inputs, self.pool.train.targets, pairs, self.options.seed)

    @cached_property
    def model(self) -> Trained:
        final = read_model(self.folder.path / "model.safetensors", self.worker.model)
        kept = {number: read_model(path, self.worker.model) for number, path in self.folder.snapshots().items()}
        seen = {number: self._read_updates(path) for number, path in self.folder.updates().items()}
        return Trained(final, kept, seen=seen)

    def _read_updates(self, path: Path) -> RoundUpdates:
        """Raises `RunFolderError` where a file is damaged or of another model."""
        try:
            tensors = tensors_in(path.parent, path.name)
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path}: the updates cannot be read ({error})") from None
        found = read_updates({f"0/{name}": value for name, value in tensors.items()})[0]
        shapes = {vector.shape for vector in (found.before, *found.updates.values())}
        if shapes != {(self.worker.initial_model.numel(),)}:
            raise RunFolderError(f"{path}: not the updates of the model that config.yaml names")
        return found

    def check(self, attack: str) -> None:
        """Raises where this run lacks what the attack needs."""
        if attack == "confidence_series" and not self.folder.snapshots():
            raise RunFolderError(
                f"{self.folder.path}: attack=confidence_series needs the global models of several rounds, and the run "
                "has no snapshots/: train it with attack.keep_snapshots=true (and attack.snapshot_every=N, at most "
                "its rounds)"
            )
        if attack in OF_UPDATES and not self.folder.updates():
            raise RunFolderError(
                f"{self.folder.path}: attack={attack} needs the clients' updates, and the run has no updates/: train "
                "it with attack.keep_updates=true"
            )

    # --- models trained for the attack --------------------------------------------------------------------------------

    def _seed(self, *key: int | str) -> int:
        return int(generator(self.config.seed, self.options.seed, *key).integers(2**31))

    def _coins(self, count: int, *key: int | str) -> NDArray[np.bool_]:
        return generator(self.options.seed, *key).integers(0, 2, count).astype(bool)

    def _like(self, coins: NDArray[np.bool_], *key: int | str, snapshots: Rounds = (), seen: Rounds = ()) -> Job:
        """A model trained on one example of every pair, members and non-members alike."""
        rows = np.sort(self.targets.pairs.turned(coins).members)
        job = shadows.like(self.config, rows, self.public, self.trained_on, seed=self._seed(*key), snapshots=snapshots)
        return self._of_pool(job, seen)

    def _of_pool(self, job: Job, seen: Rounds = ()) -> Job:
        """Rows refer to the run's own pool, whatever the job's seed. seen: rounds whose updates are kept."""
        return replace(job, pool_seed=self.pool_seed, seen=seen)

    def shadow_jobs(self, attack: str) -> list[Job]:
        """Every second one has the coins of the one before, turned: each example is in half of them. Of an odd number
        coins decide which example of a pair is in one more than the other.
        """
        count = {"ml_leaks": 1, "lira": self.options.shadows, "rmia": self.options.shadows}.get(attack, 0)
        pairs = len(self.targets.pairs)
        return [
            self._like(self._coins(pairs, "shadow", number // 2) ^ bool(number % 2), "shadow", number)
            for number in range(count)
        ]

    def negative_job(self) -> Job:
        coins = self._coins(len(self.targets.pairs), "negative")
        kept, seen = tuple(self.folder.snapshots()), tuple(self.folder.updates())
        return self._like(coins, "negative", snapshots=kept, seen=seen)

    def control_parts(self, count: int, *key: int | str) -> list[Targets]:
        """Targets of each overfitted model: some of the pairs, turned by coins of its own."""
        half = self.options.control_examples // 2
        evaluated, known = self.targets.evaluated.first(half), self.targets.known.first(half)
        if len(known) < FEWEST // 2:
            raise TooFewExamples(f"{len(known)} known members are too few for the positive control")
        return [
            Targets(
                evaluated.turned(self._coins(len(evaluated), *key, number, "evaluated")),
                known.turned(self._coins(len(known), *key, number, "known")),
            )
            for number in range(count)
        ]

    def control_jobs(self, attack: str) -> tuple[list[Targets], list[Job], list[Job]]:
        """(targets of the overfitted models, these models, their shadow models)."""
        count = {"ml_leaks": 1, "lira": CONTROL_SHADOWS, "rmia": CONTROL_SHADOWS}.get(attack, 0)
        if attack in OF_UPDATES:
            parts = self._exposed(attack)
            return parts, [self._step(part, number) for number, part in enumerate(parts)], []
        parts = self.control_parts(self.options.control_models, "positive")

        def job(part: Targets, *key: int | str) -> Job:
            rows = np.sort(part.pairs.members)
            return self._of_pool(shadows.overfitted(self.config, rows, self.public, seed=self._seed(*key)))

        models = [job(part, "positive", number) for number, part in enumerate(parts)]
        beside = self.control_parts(count, "control shadow")
        return parts, models, [job(part, "control shadow", number) for number, part in enumerate(beside)]

    def _exposed(self, attack: str) -> list[Targets]:
        """Targets of models of one client with few examples: as many as inversion seeks, or `FEWEST`, half of them
        known. Of the latter there are more, with twice as many examples in all as the overfitted ones.
        """
        seeks = attack == "inversion"
        count = self.options.control_models * (1 if seeks else 2 * self.options.control_examples // FEWEST)
        size, half = (self.options.inverted_examples, 0) if seeks else (FEWEST // 2, FEWEST // 2)
        parts = []
        for number in range(count):
            evaluated, known = (
                turning(pairs, number, length, self._coins(length, "exposed", number, name))
                for pairs, length, name in (
                    (self.targets.evaluated, size, "evaluated"),
                    (self.targets.known, half, "known"),
                )
            )
            parts.append(Targets(evaluated, self.targets.known if seeks else known))
        return parts

    def _step(self, part: Targets, number: int) -> Job:
        """A model of one client that takes one step in every round, on all its examples: those of the part that are
        its members (of inversion the evaluated ones alone).
        """
        members = part.evaluated.members
        if len(part.known) < len(self.targets.known):
            members = part.pairs.members
        job = shadows.exposed(self.config, np.sort(members), self.public, seed=self._seed("exposed", number))
        return self._of_pool(job, tuple(range(1, shadows.CONTROL_ROUNDS + 1)))

    # --- attacks -----------------------------------------------------------------------------------------

    def run(self, attack: str) -> Result:
        """The attack on the run, with both controls."""
        self.check(attack)
        work = ATTACKS[attack]
        positive = controls.positive(self._positive(attack))
        jobs = self.shadow_jobs(attack)
        beside = self._train("shadow models and the negative control", [*jobs, self.negative_job()])
        negative = controls.negative(work(self.view, self._subject(beside[-1], beside[:-1]), self.targets))
        scored = work(self.view, self._subject(self.model, beside[:-1]), self.targets)
        return Result(attack, scored, (positive, negative), len(jobs), len(beside[-1].rows))

    def _positive(self, attack: str) -> Scored:
        parts, models, beside = self.control_jobs(attack)
        trained = self._train("positive control", [*models, *beside])
        subjects = [self._subject(model, trained[len(models) :]) for model in trained[: len(models)]]
        scored = [ATTACKS[attack](self.view, subject, part) for subject, part in zip(subjects, parts, strict=True)]
        return Scored.pooled(scored)

    def _subject(self, model: Trained, beside: list[Trained]) -> Subject:
        return Subject(model, beside, self.options, np.setdiff1d(self.public, self.targets.pairs.rows))

    def _train(self, what: str, jobs: list[Job]) -> list[Trained]:
        return self.shelf.models(jobs, lambda ready, of: self.progress(what, ready, of))


def turning(pairs: Sides, number: int, length: int, coins: NDArray[np.bool_]) -> Sides:
    """The ``number``-th run of ``length`` pairs, round and round, turned by coins [length]."""
    return pairs.of((number * length + np.arange(length)) % len(pairs)).turned(coins)


def read_model(path: Path, model: FlatModel) -> FloatVector:
    """The flat parameters [d] of a saved model; `RunFolderError` where it is of another model or damaged."""
    try:
        named = tensors_in(path.parent, path.name)
        parts = [named[name] for name in model.layout.names]
    except (OSError, ValueError, KeyError) as error:
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
