"""How much noise releases have, and how far data move them in units of it, against what the ledger counts on.

Part of the noise contract (`fedpriv.attacks.noise_contract`). Every check returns its findings in words. Shapes: k
clients, n numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedpriv.attacks.noise_contract import BROKEN, Floats, Heard, listen, spread_of
from fedpriv.client.build import client_class, make_client
from fedpriv.client.example_level import ExampleLevelClient
from fedpriv.config.schema import Config
from fedpriv.privacy.events import (
    CLIENT_TO_SERVER,
    Binomial,
    DiscreteGaussianSum,
    Event,
    Gaussian,
    PoissonGaussian,
    SkellamSum,
)

#: Events of noise that is added, whatever its law.
ADDED = (Gaussian, PoissonGaussian, DiscreteGaussianSum, SkellamSum, Binomial)
#: Numbers whose noise is so many times that of the others, or its inverse, travel beside a vector.
BESIDE = 4.0
#: Relative error of a standard deviation over all numbers of eight clients, and of the noise's grid.
TOLERANCE = 0.08


def too_long(config: Config, examples: Sequence[tuple[float, int]]) -> list[str]:
    """Data of (pixel value, label) whose releases under the same keys are further apart, in units of the noise's own
    standard deviation, than the ledger counts on; and data under which there is no noise.

    For noise that is added (`ADDED`) in the first round. Example-level methods: the example among others without
    gradient, against its absence. One of the examples should be `BROKEN`: it has no effect, and must have the same
    noise.
    """
    by_example = client_class(config).threat.unit == "example" and client_class(config).traits.clips_examples
    base = listen(config, BROKEN, 0, BROKEN, flat=True, rounds=1, plain=True)
    allowed = booked_distance(base, bound=True)
    if allowed is None:
        raise ValueError(f"{config.strategy.name}: not all noise is added")
    found, releases = [], [("broken data", base.releases()[0])]
    for value, label in examples:
        name = f"pixels of {value:g}, label {label}"
        heard = listen(config, value, label, BROKEN, flat=True, rounds=1, plain=True)
        releases.append((name, heard.releases()[0]))
    kept = _of_the_vector(releases[0][1])
    releases = [(name, release[:, kept]) for name, release in releases]
    spreads = [spread_of(release) for _, release in releases]
    typical = float(np.median(spreads))
    for (name, _), spread in zip(releases, spreads, strict=True):
        if not abs(spread / typical - 1) < TOLERANCE:
            found.append(f"{name}: noise of {spread:.3g}, elsewhere {typical:.3g}")
    for index, (name, release) in enumerate(releases):
        for against, baseline in releases[: 1 if by_example else index]:
            moved = float(np.linalg.norm(np.nan_to_num(release - baseline), axis=1).max()) / typical
            if not moved <= allowed * (1 + TOLERANCE):
                words = f"{moved:.3g} standard deviations apart, the ledger counts on {allowed:.3g}"
                found.append(f"{name} and {against}: {words}")
    return found


def less_later(config: Config, rounds: int) -> list[str]:
    """Later rounds with less noise, against the first, than the ledger says was spent; rounds that spent more than is
    booked.

    For noise that is added, by a method without state or with an optimizer's alone, and a clip norm that stays.
    """
    kind, fixed = client_class(config), getattr(config.strategy.options, "clipping", "fixed") == "fixed"
    if rounds < 2 or not fixed or not (kind.traits.State is None or issubclass(kind, ExampleLevelClient)):
        return []
    heard = listen(config, BROKEN, 0, BROKEN, flat=True, rounds=rounds, plain=True)
    spent = [booked_distance(heard, place + 1) for place in range(len(heard.releases()))]
    distances = [distance for distance in spent if distance is not None and math.isfinite(distance)]
    if len(distances) < len(spent):
        return []
    vectors = _of_the_vector(heard.releases()[0])
    spreads = [spread_of(values[:, vectors]) for values in heard.releases()]
    noises = [spread * distance for spread, distance in zip(spreads, distances, strict=True)]
    if not noises[0] > 0:
        return ["round 1 has no noise, and the ledger counts on some"]
    found = []
    for place, distance in enumerate(distances):
        bound = booked_distance(heard, place + 1, bound=True)
        if bound is not None and distance > bound * (1 + 1e-9):
            found.append(f"round {place + 1}: {distance:.3g} standard deviations apart, {bound:.3g} are booked")
    return found + [
        f"round {place + 1} has {noise / noises[0]:.3g} of the noise that the ledger counts on, against the first"
        for place, noise in enumerate(noises)
        if not noise > noises[0] * (1 - TOLERANCE)
    ]


def booked_distance(heard: Heard, server_round: int = 1, *, bound: bool = False) -> float | None:
    """How far one unit may move a client's release of a round, in standard deviations of its noise, by what the ledger
    says was spent (``bound``: was booked before); None where not all of that is noise that is added.

    What goes into a secure sum is heard alone, so it is held against what is booked for that.
    """
    entries = [entry for entry in heard.entries if entry.client == heard.clients[0] and entry.round == server_round]
    booked = [entry.event if bound else entry.spent for entry in entries]
    own = make_client(heard.config).threat
    heard_alone = (CLIENT_TO_SERVER, replace(own, observer="server"))
    threat = next((one for one in heard_alone if any(event.threat == one for event in booked)), own)
    events = [event for event in booked if event.threat == threat]
    if not events or not all(isinstance(event, ADDED) for event in events):
        return None
    return math.sqrt(sum(event.count * apart(event) ** 2 for event in events))


def apart(event: Event) -> float:
    """Sensitivity / standard deviation. Of several steps in one release the noises add up, and so may what an example
    moves: at most the square root of their number times this.
    """
    if isinstance(event, Binomial):  # the variance of a fair coin is 1/4
        return event.l2 / (event.step * math.sqrt(event.trials) / 2) if event.trials else math.inf
    multiplier = event.multiplier  # type: ignore[attr-defined]
    return 1 / multiplier if multiplier else math.inf


def _of_the_vector(values: Floats) -> NDArray[np.bool_]:
    """Which numbers [n] of releases [k, n] have noise like the others'; all that not every client sends."""
    kept, full = np.ones(values.shape[1], bool), ~np.isnan(values).any(0)
    if full.any():
        spread = np.maximum(values[:, full].std(0), 1e-300)
        kept[full] = np.abs(np.log(spread / np.median(spread))) <= math.log(BESIDE)
    return kept
