"""The audit of release code: its outputs on worst-case inputs, compared with the claimed and verified epsilon."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.attacks.release_views import Place, Seen, Sums
from fedpriv.attacks.trial_features import MOST_FEATURES, PILOT, summarised
from fedpriv.client.base import Client
from fedpriv.client.build import make_client
from fedpriv.client.contract import Neighbours, Release
from fedpriv.common.doing import doing
from fedpriv.config.schema import Config
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.noise import CPU, NoiseSource, SeededNoise, Shape, grid_step
from fedpriv.privacy.auditor import Audit, audit, expected_bound, sampled_score, verdict, verified_curve
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import BLIND_TO_COHORT
from fedpriv.privacy.scaled_noise import family_of
from fedpriv.privacy.trade_offs import SharperBound
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.planning import most_participations

#: Coordinates of a short release, of which many trials can be had: beside the run's own dimension, where a method
#: treats all coordinates alike. The update is spread evenly, so that a single coordinate without noise shows.
DIMENSION = 8


LEAST_PILOT = 64


#: Numbers held in memory at a time: of short trials' features, and of releases.
CHUNK_NUMBERS, BLOCK_NUMBERS = 2**24, 2**21


#: Numbers that are drawn in all, which takes less than a minute, and what a pair that is added for faults alone may
#: draw of it, against one that the method is worst for. The trials follow, fewer where releases are long.
ALL_NUMBERS, EXTRA_SHARE = 9e8, 0.2
#: With fewer trials nothing could be learned.
FEWEST_TRIALS = 400


@dataclass(frozen=True)
class AuditedScope:
    """An audit of a number of participations, with the epsilon claimed and verified for the same number.

    pair: of data, that was told apart best. dimension: numbers of a release that the audit was of. path: the code that
    made it. sizes: (numbers of a release, trials), of all that was looked at. expected: what the audit would show at
    least, in a share ``confidence`` of audits, of a mechanism at its verified epsilon; attainable: at most. sharper:
    the largest bounds of all looks under assumptions.
    """

    name: str
    participations: int
    pair: str
    dimension: int
    path: str
    audit: Audit
    claimed: float | None
    verified: float
    expected: float
    attainable: float
    verdict: str
    sizes: tuple[tuple[int, int], ...] = ()
    sharper: tuple[SharperBound, ...] = ()

    @property
    def looked_at(self) -> str:
        """In words, the longest releases first."""
        return " and ".join(f"{trials:,} trials of {numbers:,} numbers" for numbers, trials in self.sizes)


@dataclass(frozen=True)
class Look:
    """One audit among those whose largest bound is kept, fixed before anything is drawn."""

    pair: Neighbours
    dimension: int
    trials: int

    @property
    def participations(self) -> int:
        return len(self.pair.world0)


def planned_looks(
    client: Client, participations: int, trials: int, own: int | None = None, scopes: int = 1
) -> list[Look]:
    """The pairs at the run's ``own`` dimension, with as many of the trials as `ALL_NUMBERS` allows for each of
    ``scopes``; and, where those are fewer, at a short one as well. own None: at the short one alone.
    """
    pairs = client.worst_case_pairs(participations)
    if own is None:
        return [Look(pair, DIMENSION, trials) for pair in pairs]
    extra = further_pairs(client, pairs)
    numbers = max(own, _width(client, pairs[0], own)) * max(1, participations)
    share = ALL_NUMBERS / scopes / (len(pairs) + EXTRA_SHARE * len(extra))
    found = []
    for pair, part in [*((pair, share) for pair in pairs), *((pair, EXTRA_SHARE * share) for pair in extra)]:
        affordable = min(trials, int(part / (2 * numbers)))
        if affordable >= FEWEST_TRIALS:
            found.append(Look(pair, own, affordable))
    if client.traits.alike_at_any_dimension and not any(look.trials == trials for look in found):
        found.extend(Look(pair, DIMENSION, trials) for pair in pairs)
    return found or [Look(pair, own, FEWEST_TRIALS) for pair in pairs]


def _width(client: Client, pair: Neighbours, dimension: int) -> int:
    """Numbers of a trial's release, of which several steps have more than the model."""
    one = Look(pair, dimension, 1)
    return max((release.value.shape[1] for release in _releases(client, one, True, 1, SeededNoise(0))), default=1)


def further_pairs(client: Client, pairs: Sequence[Neighbours]) -> list[Neighbours]:
    """Pairs for faults, and for a method that names no worst pair of its own: no update, one a thousand times as long,
    one along a single axis; of a method that keeps a state also what a state lets through.
    """
    first = pairs[0]
    many = len(first.world0)
    if any(first.world0):  # anything may be replaced by anything
        nothing, plain, long = (0.0,) * many, (1.0,) * many, (LONG,) * many
        opposite = tuple(-value for value in plain)
        found = [
            Neighbours("no update against one", nothing, plain),
            Neighbours(f"an update against {LONG:g} times the same", plain, long),
            Neighbours("opposite updates along one axis", plain, opposite, axes=1),
        ]
        return found + (_pairs_of_a_state(many) if client.traits.State is not None else [])
    longer = tuple(LONG * value for value in first.world1)
    return [
        Neighbours(f"{first.name}, {LONG:g} times as long", first.world0, longer),
        Neighbours(f"{first.name}, along one axis", first.world0, first.world1, axes=1),
    ]


def _pairs_of_a_state(many: int) -> list[Neighbours]:
    """Opposite updates that a momentum cannot make shorter than the clip norm; and with a sign that changes in every
    round, where what is kept of the last round adds to the distance of this one.
    """
    signs = [("opposite long updates", (1.0,) * many)]
    if many > 1:
        signs.append(("opposite long updates of changing sign", tuple((-1.0) ** index for index in range(many))))
    return [Neighbours(name, tuple(LONG * x for x in sign), tuple(-LONG * x for x in sign)) for name, sign in signs]


#: Length, in clip norms, of an update that clipping has to shorten.
LONG = 1000.0


def audit_mechanism(
    client: Client,
    participations: int,
    *,
    delta: float,
    trials: int,
    confidence: float,
    seed: int,
    name: str = "",
    one_coordinate: bool = False,
    own: int | None = None,
    scopes: int = 1,
) -> AuditedScope:
    """Audits ``participations`` releases of one client over all `planned_looks` and keeps the largest bound.

    The error probability is divided among the looks, and among ``scopes`` such audits, so that all bounds hold together
    with the stated confidence. own: the run's dimension.
    """
    looks = planned_looks(client, participations, trials, own, scopes)
    if one_coordinate:
        pairs = client.worst_case_pairs(participations)
        looks = [Look(pair, 1, trials) for pair in [*pairs, *further_pairs(client, pairs)]]
    planned = client.planned_events(participations)
    events = [event.one_coordinate() for event in planned] if one_coordinate else planned
    families = [family] if (family := family_of(events)) is not None else []
    scores = sampled_score(events, participations)
    found: list[tuple[Audit, Look]] = []
    with recorded_path(client) as path:
        for index, look in enumerate(looks):
            doing(f"{participations} releases of {look.dimension:,} numbers, {look.pair.name}")
            chosen = seed * 1000 + index
            sample, chunk = _sample_of(client, look, chosen, bool(scores))
            one = audit(
                sample,
                delta=delta,
                trials=look.trials,
                confidence=confidence,
                seed=chosen,
                structural=client.exact_leak(),
                chunk=chunk,
                looks=len(looks) * scopes,
                families=families,
                scores=scores,
            )
            found.append((one, look))
    best, look = max(found, key=lambda item: (item[0].epsilon_lower, item[0].epsilon_sampled))
    largest, _ = max(found, key=lambda item: item[0].trials)
    sharper = max((one.sharper for one, _ in found), key=lambda bounds: [bound.epsilon_lower for bound in bounds])
    verified = compose_events(events, delta).epsilon
    expected = expected_bound(verified_curve(events, delta), largest.measured, delta, confidence, largest.looks)
    claim = client.claim(participations, delta)
    claimed = claim.epsilon if claim else None
    # A claim about the run covers several releases; one release matches every scope except a claim about single
    # coordinates. An audit at this delta also refutes a pure claim (delta 0).
    of_coordinates = claim is not None and claim.scope == "coordinate"
    same_scope = claim is not None and (participations == 1 or claim.scope == "run") and claim.delta <= delta
    same_scope &= one_coordinate or not of_coordinates
    attainable = largest.attainable
    words = verdict(best, claimed, same_scope, verified=verified, expected=expected, attainable=attainable)
    return AuditedScope(
        name or f"{participations} releases",
        participations,
        look.pair.name,
        look.dimension,
        path(),
        best,
        claimed,
        verified,
        expected,
        attainable,
        words,
        tuple(sorted({look.dimension: look.trials for look in reversed(looks)}.items(), reverse=True)),
        sharper,
    )


@contextmanager
def recorded_path(client: Client) -> Iterator[Callable[[], str]]:
    """Gives the code that was run, in words: whether the method's ``audit_release`` went through its ``release``, and
    that is all that the observer sees the work of.
    """
    real, called, blind = client.release, [], client.threat.observer in BLIND_TO_COHORT

    def release(*arguments: Any) -> Release:
        called.append(True)
        return real(*arguments)

    client.release = release  # type: ignore[assignment,method-assign]
    try:
        yield lambda: "release()" if called and not blind else f"{type(client).__name__}.audit_release()"
    finally:
        del client.release


def _releases(client: Client, look: Look, world: bool, trials: int, noise: NoiseSource) -> Iterator[Release]:
    """What a client releases, one participation after the other, in ``trials`` trials at once."""
    state, client.audit_axes = None, look.pair.axes
    for length in look.pair.world1 if world else look.pair.world0:
        release = client.audit_release(length, state, (trials, look.dimension), noise)
        state = release.state
        yield release


class _SmoothNoise(SeededNoise):
    """Seeded noise whose low bits say nothing, as those of secure noise: on its grid, or finer than any float32. The
    float32 draws of simulations have gaps, and what is added to them shows between these: how many numbers of a sum end
    in zeros told a client of 650 parameters at half a standard deviation, which no run with secure noise tells.
    """

    def __init__(self, *key: int | str) -> None:
        super().__init__(*key)
        self._between = SeededNoise(*key, "between float32 numbers")

    def normal(self, shape: Shape, std: float = 1.0) -> Tensor:
        return self._on_grid(super().normal(shape, std), std)

    def on_device(self, shape: Shape, std: float, device: torch.device) -> Tensor:
        return self._on_grid(super().on_device(shape, std, device), std)

    def fine_normal(self, shape: Shape, std: float, device: torch.device = CPU) -> Tensor:
        return self._moved(super().fine_normal(shape, std, device), std)

    def _on_grid(self, drawn: Tensor, std: float) -> Tensor:
        step = grid_step(std)
        return self._moved(drawn.double(), std).div_(step).round_().mul_(step).float() if step else drawn

    def _moved(self, drawn: Tensor, std: float) -> Tensor:
        """Each by half a step of the grid at most (float64)."""
        return drawn + self._between.uniform(drawn.shape).sub_(0.5).mul_(grid_step(std)).to(drawn.device)


def _sample_of(client: Client, look: Look, seed: int, matched: bool) -> tuple[Any, int]:
    """(sample(world, n, seed) of `audit`, how many trials it may be asked for at a time). matched: its first features
    are to be each release along the effect of the data.
    """
    if look.dimension <= DIMENSION:
        # The noise of the pilot is the same in both worlds.
        pilot = [_sampler(client, look, "audit pilot")(world, PILOT, seed) for world in (False, True)]
        sample = summarised(_sampler(client, look), pilot, look.dimension, matched)
        return sample, max(PILOT, CHUNK_NUMBERS // (DIMENSION * max(1, look.participations)))
    places = _learned_places(client, look, seed)
    block = max(1, BLOCK_NUMBERS // look.dimension)

    def long(world: bool, trials: int, seed: int) -> NDArray[np.float32]:
        blocks = []
        for start in range(0, trials, block):
            noise, seen = _SmoothNoise(seed, int(world), "audit", look.pair.name, start), Seen()
            for place, release in zip(
                places, _releases(client, look, world, min(block, trials - start), noise), strict=True
            ):
                seen.add(release.value.float(), place)
                seen.beside.extend(number.float() for number in release.statistics.values())
            blocks.append(seen.features())
        features: NDArray[np.float32] = torch.cat(blocks).numpy()
        return features

    return long, max(PILOT, CHUNK_NUMBERS // (2 * look.participations + MOST_FEATURES))


def _learned_places(client: Client, look: Look, seed: int) -> list[Place]:
    """Where to look in every release, from trials with the same noise in both worlds."""
    numbers = look.dimension * max(1, look.participations)
    pilot = min(PILOT, max(LEAST_PILOT, look.trials // 4), max(LEAST_PILOT, int(ALL_NUMBERS / 50 / numbers)))
    block = max(1, BLOCK_NUMBERS // look.dimension)
    worlds = [[Sums() for _ in look.pair.world0] for _ in range(2)]
    for start in range(0, pilot, block):
        for world, sums in enumerate(worlds):
            noise = _SmoothNoise(seed, "audit pilot", look.pair.name, start)
            for one, release in zip(
                sums, _releases(client, look, bool(world), min(block, pilot - start), noise), strict=True
            ):
                one.add(release.value.float())
    return [Place.learned(both) for both in zip(*worlds, strict=True)]


def _sampler(client: Client, look: Look, purpose: str = "audit") -> Any:
    """sample(world, n, seed) -> releases [n, participations * features] of the client's own release code, all numbers
    of them and beside them. A pilot's noise is the same in both worlds.
    """

    def sample(world: bool, trials: int, seed: int) -> NDArray[np.float32]:
        key = (int(world), purpose) if purpose == "audit" else (purpose,)
        seen = []
        for release in _releases(client, look, world, trials, _SmoothNoise(seed, *key, look.pair.name)):
            seen.append(release.value)
            seen.extend(number.float().unsqueeze(1) for number in release.statistics.values())
        features: NDArray[np.float32] = torch.cat(seen, dim=1).numpy()
        return features

    return sample


def audit_config(
    config: Config,
    *,
    trials: int,
    confidence: float,
    seed: int,
    participations: int | None = None,
    released: int | None = None,
) -> list[AuditedScope]:
    """Audits the whole run (``released`` releases if it has ended, else as many as the client asked most often), or
    ``participations``; and a single release.
    """
    client = make_client(config)
    most = participations or released or client.observed_rounds(most_participations(config))
    delta = config.privacy.delta
    names = {most: "whole run" if participations is None else f"{most} releases", 1: "one release"}
    claim = client.claim(1, delta)
    by_coordinate = claim is not None and claim.scope == "coordinate"
    common: dict[str, Any] = {"delta": delta, "trials": trials, "confidence": confidence, "seed": seed}
    common |= {"scopes": len(names) + by_coordinate, "own": release_size(config, client)}
    scopes = [audit_mechanism(client, n, **common, name=names[n]) for n in sorted(names, reverse=True)]
    if by_coordinate:
        scopes.append(audit_mechanism(client, 1, **common, name="one coordinate", one_coordinate=True))
    return scopes


def release_size(config: Config, client: Client) -> int:
    """How many numbers of a model are up for release in a round: the dimension of the run's own mechanism."""
    up = client.layers(Worker(config).model.layout, 1).up
    return up.stop - up.start


def most_releases(folder: RunFolder) -> int | None:
    """The most releases of any client, from the run's ledger: clients may have stopped early."""
    answered = {(entry.client, entry.round, entry.attempt) for entry in folder.ledger.read().entries}
    counts = Counter(client for client, _, _ in answered)
    return max(counts.values(), default=None)


def threat_in_words(config: Config) -> str:
    threat = make_client(config).threat
    return f"unit {threat.unit}, {threat.adjacency}, observer {threat.observer}"
