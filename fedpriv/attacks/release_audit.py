"""The audit of release code: its outputs on worst-case inputs, compared with the claimed and verified epsilon."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.client.base import Client
from fedpriv.client.build import make_client
from fedpriv.client.contract import Neighbours
from fedpriv.common.doing import doing
from fedpriv.config.schema import Config
from fedpriv.mechanisms.noise_sources import SeededNoise
from fedpriv.privacy.auditor import Audit, audit, verdict
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.event_costs import one_coordinate as single_coordinate
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.planning import most_participations

#: Coordinates of the audited release. Where a method has one noise scale for all of them, the update is spread evenly,
#: so that a single coordinate without noise distinguishes the worlds.
DIMENSION = 8


#: Numbers of a trial that are all shown to the distinguisher; longer trials are reduced by `_Summary`.
MOST_FEATURES = 64


#: Trials in each world from which a summary is learned; none of them is measured.
PILOT = 4096


#: Numbers held in memory at a time.
CHUNK_NUMBERS = 2**24


@dataclass(frozen=True)
class AuditedScope:
    """An audit of a number of participations, with the epsilon claimed and verified for the same number."""

    name: str
    participations: int
    pair: str
    audit: Audit
    claimed: float | None
    verified: float
    verdict: str


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
) -> AuditedScope:
    """Audits ``participations`` releases of one client over all its worst-case pairs and keeps the largest bound.

    The error probability is divided among the pairs, so that the kept bound still has the stated confidence.
    """
    pairs = client.worst_case_pairs(participations)
    split = 1 - (1 - confidence) / len(pairs)
    found: list[tuple[Audit, str]] = []
    dimension = 1 if one_coordinate else DIMENSION
    for index, pair in enumerate(pairs):
        doing(f"{participations} releases, {pair.name}")
        one = audit(
            _summarised(_sampler(client, pair, dimension), dimension, seed * 1000 + index),
            delta=delta,
            trials=trials,
            confidence=split,
            seed=seed * 1000 + index,
            structural=client.exact_leak(),
            chunk=max(PILOT, CHUNK_NUMBERS // (DIMENSION * max(1, participations))),
        )
        found.append((one, pair.name))
    best, pair_name = max(found, key=lambda item: (item[0].epsilon_lower, item[0].epsilon_sampled))
    best = replace(best, confidence=confidence)
    planned = client.planned_events(participations)
    verified = compose_events(map(single_coordinate, planned) if one_coordinate else planned, delta).epsilon
    claim = client.claim(participations, delta)
    claimed = claim.epsilon if claim else None
    # A claim about the run covers several releases; one release matches every scope except a claim about single
    # coordinates. An audit at this delta also refutes a pure claim (delta 0).
    of_coordinates = claim is not None and claim.scope == "coordinate"
    same_scope = claim is not None and (participations == 1 or claim.scope == "run") and claim.delta <= delta
    same_scope &= one_coordinate or not of_coordinates
    words = "nothing is claimed" if claimed is None else verdict(best, claimed, same_scope)
    return AuditedScope(name or f"{participations} releases", participations, pair_name, best, claimed, verified, words)


def _sampler(client: Client, pair: Neighbours, dimension: int) -> Any:
    """sample(world, n, seed) -> releases [n, participations * features] of the client's own release code:
    ``dimension`` coordinates, and every number sent with them.
    """

    def sample(world: bool, trials: int, seed: int) -> NDArray[np.float32]:
        noise = SeededNoise(seed, int(world), "audit", pair.name)
        state, seen = None, []
        for length in pair.world1 if world else pair.world0:
            release = client.audit_release(length, state, (trials, dimension), noise)
            state = release.state
            seen.append(release.value)
            seen.extend(number.float().unsqueeze(1) for number in release.statistics.values())
        features: NDArray[np.float32] = torch.cat(seen, dim=1).numpy()
        return features

    return sample


@dataclass(frozen=True)
class _Summary:
    """Three features of every ``block`` numbers: the weighted sum that separates the worlds best if they are
    independent, the best single number, and the sum of squares. Numbers after the last full block are passed through.
    """

    block: int
    weights: NDArray[np.float32]  # [blocks, block]
    best: int  # index in each block

    def __call__(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """[n, features] of trials [n, numbers]."""
        blocks, whole = len(self.weights), self.weights.size
        parts = values[:, :whole].reshape(len(values), blocks, self.block)
        matched = np.einsum("nbk,bk->nb", parts, self.weights)
        squares = np.einsum("nbk,nbk->nb", parts, parts)
        found: NDArray[np.float32] = np.concatenate(
            [matched, parts[:, :, self.best], squares, values[:, whole:]], axis=1
        )
        return found

    @classmethod
    def learned(cls, world0: NDArray[np.float32], world1: NDArray[np.float32], block: int) -> _Summary:
        blocks = world0.shape[1] // block
        first, second = (world[:, : blocks * block].astype(np.float64) for world in (world0, world1))
        distance, spread = second.mean(0) - first.mean(0), (first.var(0) + second.var(0)) / 2
        spread = np.maximum(spread, 1e-9 * max(spread.max(), float(distance @ distance), 1e-300))
        telling = (np.abs(distance) / np.sqrt(spread)).reshape(blocks, block).max(0)
        weights = (distance / spread).reshape(blocks, block)
        weights /= np.maximum(np.abs(weights).max(1, keepdims=True), 1e-300)
        return cls(block, weights.astype(np.float32), int(telling.argmax()))


def _summarised(sample: Any, block: int, seed: int) -> Any:
    """The sampler itself where its trials are short; else one of summaries, learned from separate draws."""
    pilot = [sample(world, PILOT, seed * 2 + world) for world in (False, True)]
    if block == 1 or pilot[0].shape[1] <= MOST_FEATURES:
        return sample
    summary = _Summary.learned(pilot[0], pilot[1], block)
    return lambda world, trials, seed: summary(sample(world, trials, seed))


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
    common: dict[str, Any] = {"delta": delta, "trials": trials, "confidence": confidence, "seed": seed}
    names = {most: "whole run" if participations is None else f"{most} releases", 1: "one release"}
    scopes = [audit_mechanism(client, n, **common, name=names[n]) for n in sorted(names, reverse=True)]
    claim = client.claim(1, delta)
    if claim is not None and claim.scope == "coordinate":
        scopes.append(audit_mechanism(client, 1, **common, name="one coordinate", one_coordinate=True))
    return scopes


def most_releases(folder: RunFolder) -> int | None:
    """The most releases of any client, from the run's ledger: clients may have stopped early."""
    answered = {(entry.client, entry.round, entry.attempt) for entry in folder.ledger.read().entries}
    counts = Counter(client for client, _, _ in answered)
    return max(counts.values(), default=None)


def threat_in_words(config: Config) -> str:
    threat = make_client(config).threat
    return f"unit {threat.unit}, {threat.adjacency}, observer {threat.observer}"
