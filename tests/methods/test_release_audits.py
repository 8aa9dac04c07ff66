"""An audit of a method's release stays below what is verified and comes near it, and notices a fault planted there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import said_once

from fedpriv.attacks import release_audit
from fedpriv.attacks.release_audit import audit_config
from fedpriv.config.compose import compose
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy import secret_cohorts
from fedpriv.privacy.secret_cohorts import binned_events
from fedpriv.privacy.sum_grid import SumGrid

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


def scaled(name: str, part: float) -> Plant:
    """Noise of one kind is a part of what it should be; ``name``: of the method that draws it."""
    real = getattr(SeededNoise, name)
    return lambda patch: patch.setattr(SeededNoise, name, lambda self, shape, std=1.0: real(self, shape, part * std))


def quiet_numbers(patch: Patch) -> None:
    """What leaves beside a sum has an eighth of its noise."""
    normal = SeededNoise.normal

    def quiet(self: SeededNoise, shape: Any, std: float = 1.0) -> torch.Tensor:
        return normal(self, shape, std / (1 if len(np.atleast_1d(shape)) > 1 else 8))

    patch.setattr(SeededNoise, "normal", quiet)


def few_coins(patch: Patch) -> None:
    binomial = SeededNoise.binomial

    def few(self: SeededNoise, trials: int, shape: Any) -> torch.Tensor:
        return binomial(self, trials // 400, shape) + (trials - trials // 400) // 2

    patch.setattr(SeededNoise, "binomial", few)


def a_third_in_sums(patch: Patch) -> None:
    whole = SumGrid.noise
    patch.setattr(SumGrid, "noise", lambda self, sigma, *others, **named: whole(self, sigma / 3, *others, **named))


def priced_for_more_noise(patch: Patch) -> None:
    real = binned_events.__wrapped__

    def cheap(*place: Any) -> Any:
        return tuple(replace(event, multiplier=event.multiplier * 6) for event in real(*place))

    patch.setattr(secret_cohorts, "binned_events", cheap)


EVERYBODY = "num_clients=20 clients_per_round=20"
CENTRAL = f"{EVERYBODY} strategy.client.form=central strategy.server.client_sampling=poisson num_rounds=4"
DPFEDAVG = f"{CENTRAL} strategy=dpfedavg num_rounds=6 strategy.client.noise_multiplier=2"
PASSES = f"{CENTRAL} strategy=dpfedavg num_rounds=2 clients_per_round=10 strategy.server.client_sampling=allocated"
ZEROTH = "strategy=dpzo num_rounds=3 strategy.client.noise_multiplier=2"
BINS = "strategy=dpftrl num_clients=12 clients_per_round=3 num_rounds=8 strategy.server.client_sampling=balls"
CHOSEN = f"{EVERYBODY} strategy=dpfedsnlc num_rounds=1 strategy.client.selection=gumbel strategy.client.epsilon=4"
SUMS = "num_clients=8 clients_per_round=8 num_rounds=1 strategy.server.min_replies=6 strategy.client.colluders=2"
#: (options, trials, least bound of the code as it is, what is planted).
CASES: list[tuple[str, int, float, Plant | None]] = [
    (DPFEDAVG, 40_000, 0.5, scaled("normal", 1 / 4)),
    (f"{PASSES} strategy.client.noise_multiplier=0.7", 40_000, 0.5, scaled("normal", 1 / 4)),
    (f"{DPFEDAVG} strategy.server.clipping=quantile strategy.server.count_share=0.9", 20_000, 0.3, quiet_numbers),
    (f"{DPFEDAVG} strategy=dpfedexp strategy.server.norm_share=0.9", 20_000, 0.3, quiet_numbers),
    (f"{CENTRAL} strategy=dpfedsam strategy.client.noise_multiplier=1.5", 10_000, 0.3, None),
    (f"{CENTRAL} {ZEROTH}", 10_000, 0.2, None),
    (f"{EVERYBODY} {ZEROTH}", 10_000, 0.2, None),
    (f"{BINS} strategy.client.noise_multiplier=0.5 strategy.client.bandwidth=2", 40_000, 0.2, priced_for_more_noise),
    ("strategy=cpsgd strategy.client.epsilon=4 num_rounds=1", 40_000, 0.5, few_coins),
    *(
        (f"strategy={method} {SUMS} strategy.client.noise_multiplier=1.5 {rule}", 20_000, 0.5, a_third_in_sums)
        for method in ("ddgauss", "skellam")
        for rule in ("strategy.server.clipping=fixed", "strategy.server.clipping=quantile")
    ),
    (f"{CHOSEN} strategy.client.selection_share=0.5", 40_000, 0.0, scaled("gumbel", 1 / 10)),  # it sees the selection
]


@pytest.mark.parametrize(("options", "trials", "least", "plant"), CASES)
def test_it_stays_below_and_notices_a_fault(
    options: str, trials: int, least: float, plant: Plant | None, monkeypatch: Patch
) -> None:
    def found() -> Any:
        return audit_config(compose(said_once(options.split())), trials=trials, confidence=0.999, seed=1)[0]

    if SUMS in options:  # whole-number noise takes ten times as long to draw
        monkeypatch.setattr(release_audit, "ALL_NUMBERS", 3e6)
    right = found()
    assert least <= right.audit.epsilon_lower < right.verified
    if plant is not None:
        plant(monkeypatch)
        wrong = found()
        assert wrong.audit.epsilon_lower > wrong.verified
