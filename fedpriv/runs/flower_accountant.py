"""An accountant for Flower's own central-DP strategies (`flwr.serverapp.PrivacyAccountant`): the exact figure where
Flower's is a Renyi bound, a ledger that outlives the server, and a budget.

What is composed, at a trusted server that sends the mean of n clipped updates with noise of standard deviation z C / n:
in the other world one client's update counts as zero. Flower releases nothing unless all n have replied with equal
weights, so the mean moves by at most C / n, and a round is a Gaussian of multiplier z. That needs finite updates, which
no accountant sees: Flower neither refuses nor clips one that holds a NaN. In the client-side twin each client clips.
With Poisson samples of rate q = n / population (a strategy of one's own must draw them, and divide by the expected n)
it is a sampled Gaussian.

A budget holds whoever chooses z from earlier outputs: of Gaussians mu^2 = sum 1/z^2 is a filter (Smith and Thakurta
2022), and what they compose to is the same function of it. Of sampled ones no such figure is that tight, so their z and
q stay those of the first release: the total is then that of a number of rounds.

Symbols: z -> noise_multiplier, C -> the clipping norm, n -> sample_size.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)

from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.common.files import write_atomic
from fedpriv.privacy.composition import Composed, compose
from fedpriv.privacy.events import EVERY_CLIENT, Entry, Event, Gaussian, PoissonGaussian, Threat
from fedpriv.privacy.ledger import LedgerFile

TO_OUTSIDERS = Threat("client", "add-or-remove-one", "trusted-server")
#: A folder's file that says what its ledger is of.
ABOUT = "accountant.json"
LEDGER = "ledger.jsonl"


def accountant(
    population: int,
    *,
    delta: float = 1e-5,
    max_epsilon: float | None = None,
    sampling: str = "no-amplification",
    folder: str | Path | None = None,
) -> Accountant:
    """For ``accountant=`` of Flower's ``DifferentialPrivacyServerSideFixedClipping`` and its like.

    Args:
        population: clients that may be drawn.
        delta: of the epsilons that it tells.
        max_epsilon: what the whole run may cost; the wrapper stops before a round that would exceed it.
        sampling: no-amplification (what Flower's wrappers need), or poisson.
        folder: for ledger.jsonl, which a run that goes on takes up, and of which `fedpriv certificate FOLDER` is made.

    Raises:
        OptionError: for a value that is not allowed.
        RunFolderError: for a folder whose ledger is gone, or of another accountant.
    """
    allowed = ("no-amplification", "poisson")
    if sampling not in allowed:
        words = "no exact law of cohorts of a fixed size is computed here; allowed: " + ", ".join(allowed)
        raise OptionError("sampling", sampling, words)
    method = SamplingMethod(sampling)
    try:
        config = PrivacyConfig(delta, population, NeighboringRelation.ADD_OR_REMOVE_ONE, method, max_epsilon)
    except ValueError as error:
        raise OptionError("accountant", f"{population}, {delta}, {max_epsilon}", str(error)) from None
    return Accountant(config, None if folder is None else Path(folder))


class Accountant:
    """See `accountant`."""

    def __init__(self, config: PrivacyConfig, folder: Path | None = None) -> None:
        self.config, self._booked = config, list[Event]()
        self.ledger: LedgerFile | None = None
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        about = json.dumps(asdict(config), indent=1) + "\n"
        if (folder / ABOUT).exists():
            if (folder / ABOUT).read_text(encoding="utf-8") != about:
                raise RunFolderError(f"{folder}: holds the ledger of another accountant ({ABOUT}): name a new folder")
            if not (folder / LEDGER).exists():
                raise RunFolderError(f"{folder}: {LEDGER} is gone, so that what was spent is not known")
        elif any(folder.iterdir()):
            raise RunFolderError(f"{folder}: must be a new folder, or that of a run that goes on")
        (folder / LEDGER).touch()
        write_atomic(folder / ABOUT, about)
        self.ledger = LedgerFile(folder / LEDGER, fsync=True)

    @property
    def events(self) -> list[Event]:
        """Of all releases: with a ledger, of whoever wrote there."""
        return self._booked if self.ledger is None else [entry.event for entry in self.ledger.read().entries]

    # --- Flower's protocol -----------------------------------------------------------------------------------

    @property
    def num_releases(self) -> int:
        return len(self.events)

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Books releases: on the disk when this returns, before Flower hands the model on."""
        found, first = self._event(event, self.events), len(self.events)
        if self.ledger is not None:
            places = range(first, first + _count(count))
            self.ledger.append([Entry(place + 1, EVERY_CLIENT, place, 0, found) for place in places])
        else:
            self._booked += [found] * _count(count)

    def get_epsilon(self, delta: float) -> float:
        return self._composed(delta).epsilon

    def get_delta(self, epsilon: float) -> float:
        """The smallest delta at which the releases cost no more than this; 1 where there is none below."""
        if not epsilon >= 0:
            raise ValueError(f"epsilon={epsilon}: at least 0")
        low, high = -700.0, 0.0  # of ln delta
        if self.get_epsilon(math.exp(high - 1e-9)) > epsilon:
            return 1.0
        while high - low > 1e-4:
            middle = (low + high) / 2
            low, high = (low, middle) if self.get_epsilon(math.exp(middle)) <= epsilon else (middle, high)
        return math.exp(high)

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        delta = self.config.target_delta if delta is None else delta
        found = self._composed(delta)
        return PrivacySpent(found.epsilon, delta, self.num_releases, f"fedpriv-{found.accountant}")

    def would_exceed(self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1) -> bool:
        limit = self.config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise ValueError("max_epsilon: none was given, here or to the accountant")
        events = self.events
        return (
            compose([*events, *[self._event(event, events)] * _count(count)], self.config.target_delta).epsilon > limit
        )

    def state_dict(self) -> dict[str, object]:
        return {"config": asdict(self.config), "releases": [[*pair] for pair in self._counted()]}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Takes back what `state_dict` gave. Raises ValueError for another accountant's, and for one that knows other
        releases than the ledger.
        """
        own = asdict(self.config)
        if state.get("config") not in (own, json.loads(json.dumps(own))):
            raise ValueError("the state is of an accountant with another configuration")
        releases: Any = state["releases"]
        events = [self._made(float(noise), float(rate)) for noise, rate, many in releases for _ in range(int(many))]
        if self.ledger is not None and Counter(events) != Counter(self.events):
            words = f"the state has {len(events)} releases, the ledger {self.ledger.path} {self.num_releases}"
            raise ValueError(f"{words}: what was spent is what the ledger says")
        self._booked = events

    # --- inside ------------------------------------------------------------------------------------------------

    def _composed(self, delta: float) -> Composed:
        return compose(self.events, delta)

    def _event(self, event: GaussianPrivacyEvent, before: list[Event]) -> Event:
        if event.population_size != self.config.population_size:
            words = f"population_size={event.population_size}, this accountant's is {self.config.population_size}"
            raise ValueError(words)
        sampled = self.config.sampling_method is SamplingMethod.POISSON
        found = self._made(event.noise_multiplier, event.sample_size / event.population_size if sampled else 1.0)
        if sampled and before and before[0] != found:
            raise ValueError(
                f"{event}: noise and sample of poisson cohorts stay those of the first release, {before[0]}"
            )
        return found

    @staticmethod
    def _made(noise_multiplier: float, rate: float) -> Event:
        if rate < 1:
            return PoissonGaussian(threat=TO_OUTSIDERS, multiplier=noise_multiplier, sampling_rate=rate)
        return Gaussian(threat=TO_OUTSIDERS, multiplier=noise_multiplier)

    def _counted(self) -> list[tuple[float, float, int]]:
        events = self.events
        if (unknown := next((why for event in events if (why := event.why_unbounded())), None)) is not None:
            raise RunFolderError(f"{unknown}: the state is that of the ledger")
        kinds = Counter((event.multiplier, getattr(event, "sampling_rate", 1.0)) for event in events)  # type: ignore[attr-defined]
        return [(noise, rate, many) for (noise, rate), many in kinds.items()]


def _count(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count={count}: a whole number of at least 1")
    return count
