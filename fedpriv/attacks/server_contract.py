"""The noise contract of a trusted server: it sees what clients send, and its models are the releases.

Real rounds of a few clients under several seeds, by the run's own server: sampling, clipping, sum, noise keys and step
are its own. No client's examples have an effect, so that a model's moves are the server's noise; then one client's do.
At last they do while the releases stay those of the first run: a model is a function of releases, so it stays as well.
Every check returns its findings in words, an empty list where there are none. Shapes: k seeds, n numbers of a model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import torch

from fedpriv.attacks.noise_amounts import TOLERANCE, apart
from fedpriv.attacks.noise_contract import BROKEN, Floats, Heard, TwinWorker, bare_numbers, noise_parts, spread_of
from fedpriv.common.messages import ARRAYS, pack_vector
from fedpriv.config.schema import Config
from fedpriv.engines.inprocess import InProcessGrid
from fedpriv.engines.worker import adopt, make_apps
from fedpriv.privacy.events import Event
from fedpriv.runs.preparation import make_strategy
from fedpriv.server.gradient import NoisyGradientServer
from fedpriv.server.round import BudgetsSpent, Round
from fedpriv.training.sequential import LocalData

#: Seeds: with sixteen or more, the spread of single numbers is judged. Of fewer, how far a client moves a model.
SEEDS, FEW = 16, 6
#: By what releases are multiplied before they are given again.
SCALES = (1.0, 1e-3)
#: Rounds whose noise is more alike than this repeat it; correlated noise of a matrix mechanism is less so.
REPEATED = 0.9


class OneLoudWorker(TwinWorker):
    """A worker of whose clients one alone (None: nobody) holds examples that have an effect."""

    def __init__(self, config: Config, value: float, loud: int | None) -> None:
        super().__init__(config, value, 0)
        self.loud, self.said = loud, value

    def local_data(self, client: int, chosen: np.ndarray | None = None) -> LocalData:
        self.value = self.other = self.said if client == self.loud else BROKEN
        return super().local_data(client, chosen)


@dataclass
class Models:
    """moves: of the model in every round, float64 [n]; cohort, booked: of the first round."""

    moves: list[Floats] = field(default_factory=list)
    cohort: list[int] = field(default_factory=list)
    booked: list[Event] = field(default_factory=list)


@dataclass
class Releases:
    """What a run's server makes known of its clients' messages, in order: noisy means, and numbers beside them. Every
    later server gets those of the first one times ``scale`` in the place of its own.
    """

    kept: list[Floats] = field(default_factory=list)
    scale: float = 1.0
    given: bool = False

    def give(self, server: NoisyGradientServer) -> None:
        release, learn, first, later = server.noisy_mean, server.learn, not self.kept, iter(tuple(self.kept))

        def known(own: Floats) -> Floats:
            if first:
                self.kept.append(own.copy())
            return own if first else self.scale * next(later, own)

        self.given = True
        vars(server)["noisy_mean"] = lambda *given: known(release(*given))
        vars(server)["learn"] = lambda number, mean: learn(float(known(np.array(number))), mean)


def models_of(
    config: Config,
    seed: int,
    rounds: int,
    value: float = BROKEN,
    loud: int | None = None,
    releases: Releases | None = None,
) -> Models:
    """Runs ``rounds`` of ``config`` in this process under this seed, from a model of zeros, by plain steps. releases:
    are kept, or given in the place of the run's own.
    """
    config = config.model_copy(update={"seed": seed})
    worker = OneLoudWorker(config, value, loud)
    adopt(config, worker)
    strategy, found = make_strategy(config, worker), Models()
    few = getattr(strategy, "sends_few", False)
    strategy.optimizer.name, strategy.optimizer.lr = "sgd", 1.0  # others are post-processing of the noisy sum
    start = before = worker.initial_parameters() * 0
    if releases is not None and isinstance(strategy, NoisyGradientServer):
        releases.give(strategy)

    def note(current: Round) -> None:
        nonlocal before
        move, before = np.asarray(current.theta, np.float64) - before, np.asarray(current.theta, np.float64)
        if few:  # moves along few directions have as many numbers
            along = strategy.directions(move.size)  # type: ignore[attr-defined]
            move = along.coordinates(torch.from_numpy(move).float()).numpy().astype(np.float64)
        found.moves.append(move)
        if current.number == 1:
            found.cohort = list(current.cohort)
            found.booked = [entry.event for entry in current.entries]

    with suppress(BudgetsSpent):
        strategy.run_rounds(InProcessGrid(config, make_apps(config)[1]), pack_vector(start), rounds, on_round=note)
    return found


def check_server(
    config: Config, real: Config, rounds: int, values: Sequence[float]
) -> tuple[dict[str, list[str]], int]:
    """(findings by what was looked at, numbers of a model). config: with seeded noise; real: with the run's own."""
    silent = [models_of(config, seed, rounds) for seed in range(SEEDS)]
    own = silent if real is config else [models_of(real, seed, rounds) for seed in range(SEEDS)]
    heard = Heard(config, list(range(SEEDS)), [{ARRAYS: _stacked(own, place)} for place in range(rounds)])
    again = models_of(config, 0, rounds)
    same = all(np.array_equal(one, two) for one, two in zip(silent[0].moves, again.moves, strict=True))
    bare = bare_numbers(heard)
    found = {
        "every number of a model has noise": bare,
        "of its own": repeated(heard),
        "which nothing but its key decides": [] if same else ["a model is not what the noise key and the data make it"],
        "no client moves it further, or changes its noise": [] if bare else too_far(config, silent, values),
    }
    if (beside := beside_releases(config, rounds, silent, values)) is not None:
        found["it follows from the noisy releases alone"] = beside
    return found, heard.releases()[0].shape[1]


def repeated(heard: Heard) -> list[str]:
    """Seeds, or rounds of a seed, with equal noise."""
    found, noises = [], [noise_parts(values) for values in heard.releases()]
    for place, noise in enumerate(noises):
        together = np.abs(noise @ noise.T)
        np.fill_diagonal(together, 0.0)
        if together.max() > REPEATED:
            found.append(f"round {place + 1}: the noise is the same under several seeds")
        for early in range(place):
            if abs((noises[early] * noise).sum(1).mean()) > REPEATED:
                found.append(f"rounds {early + 1} and {place + 1} share their noise")
    return found


def too_far(config: Config, silent: Sequence[Models], values: Sequence[float]) -> list[str]:
    """Pixel values of one client of the first round that move its model further than booked, in standard deviations of
    the noise, or change that.
    """
    asked = [(seed, one) for seed, one in enumerate(silent) if one.cohort][:FEW]
    base = np.stack([one.moves[0] for _, one in asked])
    typical, found = spread_of(base), []
    allowed = math.sqrt(sum(event.count * apart(event) ** 2 for event in asked[0][1].booked))
    for value in values:
        name = f"pixels of {value:g} of one client"
        models = [models_of(config, seed, 1, value, one.cohort[0]) for seed, one in asked]
        moved = float(np.linalg.norm(_stacked(models, 0) - base, axis=1).max()) / typical
        if not moved <= allowed * (1 + TOLERANCE):
            found.append(f"{name}: {moved:.3g} standard deviations apart, the ledger counts on {allowed:.3g}")
        spread = spread_of(_stacked(models, 0))
        most = math.hypot(typical, moved * typical / math.sqrt(base.shape[1]))  # where what it moves differs by seed
        if not typical * (1 - TOLERANCE) < spread < most * (1 + TOLERANCE):
            found.append(f"{name}: noise of {spread:.3g}, elsewhere {typical:.3g}")
    return found


def beside_releases(config: Config, rounds: int, silent: Sequence[Models], values: Sequence[float]) -> list[str] | None:
    """Values of one client's pixels that change a model although all releases are as before: then the server uses more
    of a message than what becomes known of it. The releases are tried small, too, where noise hides nothing. None: of
    another family of servers, which has no such functions. Not seen: what begins after ``rounds``, and what shows only
    in updates shorter than C, since all that these values give are clipped.
    """
    seed, loud = next(((seed, one.cohort[0]) for seed, one in enumerate(silent) if one.cohort), (0, None))
    found, releases = [], Releases()
    models_of(config, seed, rounds, releases=releases)
    for scale in SCALES if releases.given else ():
        releases.scale = scale
        base, *others = (models_of(config, seed, rounds, value, loud, releases) for value in (BROKEN, *values))
        for value, other in zip(values, others, strict=True):
            if not all(np.array_equal(one, two) for one, two in zip(base.moves, other.moves, strict=True)):
                found.append(f"pixels of {value:g} of one client: another model from the same noisy releases")
    return list(dict.fromkeys(found)) if releases.given else None


def _stacked(models: Sequence[Models], place: int) -> Floats:
    return np.stack([one.moves[place] for one in models])
