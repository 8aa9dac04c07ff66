"""The auditor never exceeds the truth, comes close to it, and finds faults that are planted."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy import gaussian_dp as curve
from fedpriv.privacy.auditor import Audit, audit, epsilon_bound, verdict
from fedpriv.report.attacks import AuditRow, draw_audit

DELTA = 1e-5
CONFIDENCE = 0.999


def gaussian_mu(epsilon: float) -> float:
    """Distance between two Gaussians, in standard deviations, at this epsilon and DELTA."""
    return curve.gaussian_mu(epsilon, DELTA)


def shifted(mu: float) -> Callable[[bool, int, int], np.ndarray]:
    return lambda world, trials, seed: np.random.default_rng(seed).normal(mu * world, size=(trials, 1))


# --- the bound itself ----------------------------------------------------------------------------------------------


def test_bound_agrees_with_a_plain_twin() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        trials = int(rng.integers(5, 2000))
        fp, tp = (int(rng.integers(0, trials + 1)) for _ in range(2))
        level = {"confidence_level": 1 - 0.01 / 2, "method": "exact"}
        fpr = binomtest(fp, trials, alternative="less").proportion_ci(**level).high
        tpr = binomtest(tp, trials, alternative="greater").proportion_ci(**level).low
        expected = 0.0
        if tpr > DELTA:
            expected = max(expected, math.log((tpr - DELTA) / fpr))
        if 1 - fpr > DELTA:
            expected = max(expected, math.log((1 - fpr - DELTA) / (1 - tpr)))
        epsilon, fpr_upper, tpr_lower = epsilon_bound(fp, tp, trials, DELTA, 0.99)
        assert (fpr_upper, tpr_lower) == pytest.approx((fpr, tpr), rel=1e-9)
        assert epsilon == pytest.approx(expected, rel=1e-9)


def test_bound_at_its_limits() -> None:
    """No error: ln(n / ln(2/alpha)) to first order. No difference, or everything explained by delta: 0."""
    assert epsilon_bound(0, 10**6, 10**6, 0.0, 0.95)[0] == pytest.approx(math.log(10**6 / math.log(2 / 0.05)), abs=1e-3)
    assert epsilon_bound(500, 500, 1000, 0.0, 0.95)[0] == 0
    assert epsilon_bound(0, 100, 1000, 0.2, 0.95)[0] == 0
    assert epsilon_bound(0, 0, 1000, 0.0, 0.95)[0] == 0 and epsilon_bound(1000, 1000, 1000, 0.0, 0.95)[0] == 0


# --- validity and power --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0, 8.0])
def test_lower_bound_never_exceeds_the_truth(epsilon: float) -> None:
    """20 repetitions of 1e5 trials over all epsilons; about a third of the truth is what so few trials support."""
    bounds = [
        audit(
            shifted(gaussian_mu(epsilon)), delta=DELTA, trials=100_000, confidence=CONFIDENCE, seed=seed
        ).epsilon_lower
        for seed in range(5)
    ]
    assert max(bounds) <= epsilon
    assert np.median(bounds) >= {1.0: 0.0, 2.0: 0.5, 4.0: 1.6, 8.0: 3.5}[epsilon]


def test_identical_worlds_give_nothing() -> None:
    for seed in range(5):
        found = audit(shifted(0.0), delta=0.0, trials=20_000, confidence=CONFIDENCE, seed=seed)
        assert found.epsilon_lower == 0
        assert verdict(found, 0.0, same_scope=True, **exact(0.0)) == "consistent with the claim"


def test_a_million_trials_come_close() -> None:
    found = audit(shifted(gaussian_mu(4.0)), delta=DELTA, trials=1_000_000, confidence=0.95, seed=0)
    assert 0.65 * 4 <= found.epsilon_lower <= 4


def test_randomised_response_is_found_nearly_exactly() -> None:
    """A discrete law: P[report the truth] = e^1 / (1 + e^1), epsilon = 1 at delta = 0."""

    def sample(world: bool, trials: int, seed: int) -> np.ndarray:
        truth = np.random.default_rng(seed).random((trials, 1)) < math.e / (1 + math.e)
        return truth == world

    found = audit(sample, delta=0.0, trials=400_000, confidence=CONFIDENCE, seed=1)
    assert 0.97 <= found.epsilon_lower <= 1


def leaky_spread(world: bool, rng: np.random.Generator, trials: int) -> np.ndarray:
    return rng.normal(0, 1 + 2 * world, (trials, 2))


def leaky_correlation(world: bool, rng: np.random.Generator, trials: int) -> np.ndarray:
    common = rng.normal(size=(trials, 1))
    return np.hstack([common, (0.98 if world else -0.98) * common + 0.2 * rng.normal(size=(trials, 1))])


def leaky_atom(world: bool, rng: np.random.Generator, trials: int) -> np.ndarray:
    """In one world a tenth of the releases repeat a value bit for bit, well inside the noise."""
    values = rng.normal(size=(trials, 2))
    values[:, 1] = np.where(rng.random(trials) < 0.1 * world, np.float32(0.1), values[:, 1])
    return values


@pytest.mark.parametrize(
    ("leak", "rule"),
    [(leaky_spread, "quadratic"), (leaky_correlation, "quadratic"), (leaky_atom, "histogram")],
)
def test_leaks_that_no_mean_shows(leak: Callable[[bool, np.random.Generator, int], np.ndarray], rule: str) -> None:
    def sample(world: bool, trials: int, seed: int) -> np.ndarray:
        return leak(world, np.random.default_rng(seed), trials)

    found = audit(sample, delta=DELTA, trials=100_000, confidence=CONFIDENCE, seed=0)
    assert found.epsilon_lower > 4 and found.rule.startswith(rule)


# --- planted faults ------------------------------------------------------------------------------------------------

FAULTS = [
    "noise std halved",
    "clip skipped",
    "one coordinate without noise",
    "noise reused",
    "two clients seeded alike",
]


def two_rounds(fault: str | None) -> Callable[[bool, int, int], np.ndarray]:
    """Client A releases in two rounds, client B in one, all clipped to 1, with noise for epsilon 2 over A's two rounds.

    The worlds replace A's data: its updates turn into their negatives. Features [n, 6]: A's two releases, B's.
    """
    std = 2 * math.sqrt(2) / gaussian_mu(2.0)

    def release(update: torch.Tensor, noise: SeededNoise, trials: int) -> torch.Tensor:
        clipped = update if fault == "clip skipped" else update * min(1.0, 1.0 / update.norm().item())
        added = noise.normal((trials, 2), std / 2 if fault == "noise std halved" else std)
        if fault == "one coordinate without noise":
            added[:, 0] = 0
        return clipped + added

    def sample(world: bool, trials: int, seed: int) -> np.ndarray:
        sign = -1.0 if world else 1.0
        second_round = 1 if fault == "noise reused" else 2
        other_client = 0 if fault == "two clients seeded alike" else 1
        return torch.hstack(
            [
                release(sign * torch.tensor([3.0, 0.0]), SeededNoise(seed, 0, 1), trials),
                release(sign * torch.tensor([0.0, 3.0]), SeededNoise(seed, 0, second_round), trials),
                release(torch.tensor([0.1, 0.1]), SeededNoise(seed, other_client, 1), trials),
            ]
        ).numpy()

    return sample


def test_a_faultless_release_is_consistent_with_its_claim() -> None:
    found = audit(two_rounds(None), delta=DELTA, trials=400_000, confidence=CONFIDENCE, seed=0)
    assert 1.0 < found.epsilon_lower <= 2.0
    assert verdict(found, 2.0, same_scope=True, **exact(2.0)) == "consistent with the claim"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    found = audit(two_rounds(fault), delta=DELTA, trials=150_000, confidence=CONFIDENCE, seed=0)
    assert verdict(found, 2.0, same_scope=True, **exact(math.inf)) == "refutes the claim"
    assert verdict(found, 2.0, same_scope=True, **exact(2.0)) == "contradicts the verified epsilon"


# --- interface -----------------------------------------------------------------------------------------------------


def exact(verified: float) -> Any:
    """Of a mechanism of which no audit is expected to show anything."""
    return {"verified": verified, "expected": 0.0}


def found_with(epsilon: float, **fields: object) -> Audit:
    shown = {"confidence": 0.95, "trials": 10**6, "delta": DELTA, "fpr_upper": 0.0, "tpr_lower": 1.0, "rule": "linear"}
    return Audit(epsilon_lower=epsilon, epsilon_sampled=epsilon, **{**shown, **fields})  # type: ignore[arg-type]


def test_verdicts() -> None:
    three, words = found_with(3.0), verdict
    assert words(three, 2.0, same_scope=True, **exact(4.0)) == "refutes the claim"
    assert words(three, 2.0, same_scope=False, **exact(4.0)) == "cannot tell"
    assert words(three, 4.0, same_scope=True, **exact(4.0)) == "consistent with the claim"
    assert words(three, 4.0, same_scope=True, **exact(4.001)) == "consistent with the claim"
    assert words(three, 4.0, same_scope=False, **exact(4.0)) == "cannot tell"
    assert words(three, 4.0, same_scope=True, verified=6.0, expected=3.9) == "cannot tell"
    assert words(three, 4.0, same_scope=True, verified=6.0, expected=4.1) == "consistent with the claim"
    assert words(three, 50.0, same_scope=True, **exact(4.0)) == "cannot tell"  # 1e6 trials cannot show so much
    assert words(three, 4.0, same_scope=True, **exact(math.inf)) == "cannot tell"  # what is infinite may not be seen
    assert words(three, 4.0, same_scope=True, **exact(2.9)) == "contradicts the verified epsilon"
    assert words(three, None, same_scope=False, **exact(math.inf)) == "nothing is claimed"
    bare = found_with(math.inf, structural="why")
    assert words(bare, math.inf, same_scope=True, **exact(math.inf)) == "consistent with the claim"
    assert words(three, math.inf, same_scope=True, **exact(math.inf)) == "cannot tell"


def test_only_structure_makes_a_bound_infinite() -> None:
    def naked(world: bool, trials: int, seed: int) -> np.ndarray:
        return np.full((trials, 1), float(world))

    arguments = {"delta": DELTA, "trials": 10_000, "confidence": CONFIDENCE, "seed": 0}
    sampled = audit(naked, **arguments)  # type: ignore[arg-type]
    assert sampled.epsilon_lower == sampled.attainable == pytest.approx(math.log(5000 / math.log(2000)), abs=0.01)
    known = audit(naked, **arguments, structural="no noise on 98% of coordinates")  # type: ignore[arg-type]
    assert known.epsilon_lower == math.inf and known.epsilon_sampled == sampled.epsilon_lower
    assert "infinite: no noise on 98% of coordinates" in str(known) and "epsilon >= " in str(sampled)
    assert verdict(known, 1e9, same_scope=True, **exact(math.inf)) == "refutes the claim"


def test_chunks_have_seeds_of_their_own_and_memory_is_bounded() -> None:
    calls: list[tuple[bool, int, int]] = []

    def sample(world: bool, trials: int, seed: int) -> np.ndarray:
        calls.append((world, trials, seed))
        return shifted(1.0)(world, trials, seed)

    one = audit(sample, delta=DELTA, trials=25_000, confidence=0.95, seed=7, chunk=5_000)
    assert len({seed for *_, seed in calls}) == len(calls) == 12
    assert max(trials for _, trials, _ in calls) == 5_000
    assert [sum(n for world, n, _ in calls if world is side) for side in (False, True)] == [25_000, 25_000]
    assert one == audit(sample, delta=DELTA, trials=25_000, confidence=0.95, seed=7, chunk=5_000)
    calls.clear()
    audit(sample, delta=DELTA, trials=1000, confidence=0.95, seed=8)
    assert [(world, trials) for world, trials, _ in calls].count((True, 500)) == 2 and len(calls) == 4


def test_features_of_any_scale_are_read_together() -> None:
    """Scales 1e-9 and 1e9 side by side, and a feature that never changes; only the difference of the two tells."""

    def sample(world: bool, trials: int, seed: int) -> np.ndarray:
        noise = np.random.default_rng(seed).normal(size=trials)
        return np.column_stack([1e-9 * noise, 1e9 * (noise + 0.01 * world), np.full(trials, 7.0)])

    found = audit(sample, delta=DELTA, trials=10_000, confidence=CONFIDENCE, seed=0)
    assert found.epsilon_lower == found.attainable and found.rule.startswith("linear")


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda n: np.zeros(n), "shape"),
        (lambda n: np.zeros((n + 1, 1)), "shape"),
        (lambda n: np.full((n, 1), np.nan), "finite"),
    ],
)
def test_unusable_samples_are_refused(returned: Callable[[int], np.ndarray], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        audit(lambda world, trials, seed: returned(trials), delta=DELTA, trials=100, confidence=0.95, seed=0)


@pytest.mark.parametrize("wrong", [{"delta": 1.0}, {"delta": -0.1}, {"confidence": 1.0}, {"trials": 3}, {"chunk": 1}])
def test_arguments_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    arguments = {"delta": DELTA, "trials": 100, "confidence": 0.95, "seed": 0, **wrong}
    with pytest.raises(ValueError, match="audit needs"):
        audit(shifted(1.0), **arguments)  # type: ignore[arg-type]


def test_the_picture(tmp_path: Path) -> None:
    rows = [
        AuditRow("fedcad (repaired)", found_with(3.1), claimed=4.0, verified=4.0),
        AuditRow(
            "fedcad (published)",
            found_with(math.inf, structural="norm sent without noise"),
            claimed=4.0,
            verified=math.inf,
        ),
        AuditRow("broken", found_with(6.0), claimed=2.0),
    ]
    draw_audit(rows, tmp_path / "audit.png", threat="unit client, replace-one, observer server")
    assert (tmp_path / "audit.png").stat().st_size > 10_000
    draw_audit([], tmp_path / "empty.png", threat="none")
