"""DP-FTRL: rounds by hand, what is charged for them, resumed runs, audits, and options."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import making
import numpy as np
import pytest
from conftest import Run, ledger_of, result_of
from fake_grid import SIZE, THETA, FakeGrid
from flwr.app import ConfigRecord, Message

from clients.dpftrl import DPFTRLClient
from fedpriv.attacks.release_audit import audit_config, audit_mechanism
from fedpriv.client.contract import PublicFacts
from fedpriv.common.messages import pack_vector, reply_content, unpack_vector
from fedpriv.config.compose import compose
from fedpriv.mechanisms.matrix_factors import MatrixMechanism, coefficients, inverse, sensitivity
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import EVERY_CLIENT, Event
from fedpriv.privacy.gaussian_dp import gaussian_epsilon
from fedpriv.server.round import BudgetsSpent, Hooks, Population
from fedpriv.server.strategy import FederatedStrategy
from strategies.dpftrl import DPFTRL

DELTA = 1e-5
CLIENTS, ASKED, ROUNDS = 8, 2, 8  # k = 2, b = 4


def server(attempt: int = 0, hooks: Hooks | None = None, **changes: Any) -> DPFTRL:
    population = Population(7, CLIENTS, ASKED, lambda client: 10, attempt=attempt)
    given: dict[str, Any] = {"rounds": ROUNDS, "noise_multiplier": 0.0} | changes
    return making.server(DPFTRL, population, hooks=hooks or Hooks(), **given)


def play(
    strategy: FederatedStrategy, theta: np.ndarray, number: int, release: Callable[[int], np.ndarray | None]
) -> np.ndarray:
    """One round; a client whose release is None does not answer."""
    grid = FakeGrid(CLIENTS)

    def answer(message: Message, client: int) -> list[Message]:
        found = release(client)
        return [] if found is None else [Message(reply_content(found.astype(np.float32), 10, {}), reply_to=message)]

    grid.answer = answer
    messages = strategy.configure_train(number, pack_vector(theta), ConfigRecord(), grid)
    arrays, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
    assert arrays is not None
    return unpack_vector(arrays)


def thetas(strategy: FederatedStrategy, rounds: int = ROUNDS, length: float = 0.5) -> list[np.ndarray]:
    theta, found = THETA, []
    for number in range(1, rounds + 1):
        theta = play(strategy, theta, number, lambda client: np.full(SIZE, length / math.sqrt(SIZE)) * (-1) ** client)
        found.append(theta)
    return found


# --- rounds --------------------------------------------------------------------------------------------------------


def test_without_noise_it_is_the_mean_over_all_who_were_asked() -> None:
    """A client that is silent counts as zero: the denominator tells nothing of who answered."""
    made, ones = server(), np.full(SIZE, 0.1)
    whole = play(made, THETA, 1, lambda client: ones)
    np.testing.assert_allclose(whole, THETA + 0.1, rtol=1e-6)
    one, silent = made.current.cohort[0], server()
    np.testing.assert_allclose(play(silent, THETA, 1, lambda c: ones if c == one else None), THETA + 0.05, rtol=1e-6)
    np.testing.assert_allclose(play(server(), THETA, 1, lambda client: None), THETA)


def test_the_server_clips_again() -> None:
    moved = play(server(clip_norm=0.5), THETA, 1, lambda client: np.full(SIZE, 1e6)) - THETA
    assert np.linalg.norm(moved) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("factor", ["sqrt", "bisr", "blt"])
def test_theta_has_the_noise_of_the_factor(factor: Any) -> None:
    """sum of all rounds = sum of the updates + A C^-1 z: its variance over 100 seeds, in every round."""
    found = []
    for seed in range(100):
        made = server(factor=factor, noise_multiplier=1.0, clip_norm=0.5)
        object.__setattr__(made.population, "seed", seed)
        found.append(np.stack(thetas(made, length=0.0)) - THETA)
    spread = np.stack(found).std(axis=(0, 2)) * ASKED
    c = coefficients(factor, ROUNDS, 2, 4)
    rows = np.cumsum(inverse(c, ROUNDS))
    expected = 0.5 * sensitivity(c, ROUNDS, 2, 4) * np.sqrt(np.cumsum(rows**2))
    np.testing.assert_allclose(spread, expected, rtol=0.12)


# --- the account -----------------------------------------------------------------------------------------------------


def booked(strategy: DPFTRL, rounds: Sequence[int]) -> list[Event]:
    """Of these rounds; every one is charged to everybody."""
    found = []
    for number in rounds:
        play(strategy, THETA, number, lambda client: np.zeros(SIZE))
        assert all(entry.client == EVERY_CLIENT for entry in strategy.current.entries)
        found += [entry.event for entry in strategy.current.entries]
    return found


def test_all_rounds_cost_one_gaussian() -> None:
    events = booked(server(noise_multiplier=2.0), range(1, ROUNDS + 1))
    assert compose_events(events, DELTA).epsilon == pytest.approx(gaussian_epsilon(1 / 2.0, DELTA))


def test_rounds_that_are_released_again_are_paid_again() -> None:
    """Rounds 4 and 5 left, the checkpoint is round 3's, and their noise cannot be repeated: 4 to 8 are a second run."""
    first = booked(server(noise_multiplier=2.0), range(1, 6))
    again = booked(server(noise_multiplier=2.0, attempt=1000), range(4, ROUNDS + 1))
    assert len(again) == 1
    own = sum(1 / event.multiplier**2 for event in first)  # type: ignore[attr-defined]
    expected = gaussian_epsilon(math.sqrt(own + 1 / 4), DELTA)
    assert compose_events([*first, *again], DELTA).epsilon == pytest.approx(expected)


@pytest.mark.parametrize("restart", range(1, ROUNDS))
def test_no_pattern_moves_both_runs_further_than_what_is_booked(restart: int) -> None:
    """By brute force: the first run up to the last round, then rounds from ``restart`` on again, with another pattern
    that agrees before it.
    """
    c = coefficients("banded", ROUNDS, 2, 4)
    whole = np.array([[c[i - j] if 0 <= i - j < len(c) else 0.0 for j in range(ROUNDS)] for i in range(ROUNDS)])
    patterns = [()] + [(i,) for i in range(ROUNDS)] + [(i, j) for i in range(ROUNDS) for j in range(i + 4, ROUNDS)]
    rows = [whole @ np.isin(np.arange(ROUNDS), pattern) for pattern in patterns]
    worst = max(
        float(one @ one + other[restart:] @ other[restart:])
        for pattern, one in zip(patterns, rows, strict=True)
        for second, other in zip(patterns, rows, strict=True)
        if [i for i in pattern if i < restart] == [i for i in second if i < restart]
    )
    assert worst <= 2 * sensitivity(c, ROUNDS, 2, 4) ** 2 * (1 + 1e-12)


def test_the_server_ends_the_run_before_a_budget_is_exceeded() -> None:
    made = server(noise_multiplier=1.0, hooks=Hooks(admits=lambda *events: False))
    with pytest.raises(BudgetsSpent, match=r"round 1: the next global model would exceed privacy\.max_epsilon"):
        play(made, THETA, 1, lambda client: np.zeros(SIZE))


# --- audits ----------------------------------------------------------------------------------------------------------


def client(factor: str = "banded", **changes: Any) -> DPFTRLClient:
    facts = PublicFacts(60, 60, 10, ROUNDS, ASKED, SIZE, CLIENTS, 2, 4)
    return making.client(DPFTRLClient, facts=facts, factor=factor, noise_multiplier=1.0, **changes)


def audited(made: DPFTRLClient) -> tuple[float, float]:
    found = audit_mechanism(made, ROUNDS, delta=DELTA, trials=40_000, confidence=0.999, seed=1)
    return found.audit.epsilon_lower, found.verified


@pytest.mark.parametrize("factor", ["identity", "sqrt", "bisr", "blt"])
def test_audit_comes_near_the_account_and_not_above(factor: str) -> None:
    lower, verified = audited(client(factor))
    assert 0.25 * verified < lower <= verified


def test_audit_finds_a_sensitivity_that_forgets_the_second_participation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.mechanisms.matrix_factors.sensitivity", lambda c, *pattern: 0.5)
    made = client("sqrt")
    lower, verified = audited(made)
    assert lower > verified


def test_a_finished_run_is_audited_at_its_whole_length(run: Run) -> None:
    config = compose(["strategy=dpftrl", "num_clients=4", "clients_per_round=2", "num_rounds=4"])
    (whole, one) = audit_config(config, trials=20_000, confidence=0.99, seed=0)
    assert (whole.participations, one.participations) == (4, 1)
    assert one.verified < whole.verified == whole.claimed
    assert whole.audit.epsilon_lower <= whole.verified and one.audit.epsilon_lower <= one.verified


# --- whole runs -------------------------------------------------------------------------------------------------

OPTIONS = ("strategy=dpftrl", "num_clients=6", "clients_per_round=2", "num_rounds=5")


def test_secret_noise_goes_on_from_the_checkpoint_and_is_paid_again(resumed: Callable[..., Path]) -> None:
    folder = resumed(
        *OPTIONS, "checkpoint.every=2", "privacy.rng=secure", "strategy.client.noise_multiplier=2.0", after=3
    )
    lines = [(entry["round"], entry["multiplier"]) for entry in ledger_of(folder)]
    assert [number for number, _ in lines] == [1, 2, 3, 3] and lines[-1][1] == 2.0
    spent = json.loads((folder / "summary.json").read_text())["privacy"]["verified_epsilon"]
    assert gaussian_epsilon(1 / 2, DELTA) < spent <= gaussian_epsilon(math.sqrt(2) / 2, DELTA)


def test_correlated_noise_is_better_than_independent_noise_of_the_same_price(run: Run) -> None:
    options = ("strategy=dpftrl", "num_clients=40", "clients_per_round=4", "num_rounds=30", "privacy.target_epsilon=8")
    options = (*options, "strategy.client.clip_norm=0.2", "evaluate.every=0")
    accuracy = {
        factor: np.mean(
            [
                result_of(run(*options, f"strategy.client.factor={factor}", f"seed={seed}"))["summary"]["loss"]["final"]
                for seed in (0, 1)
            ]
        )
        for factor in ("identity", "banded")
    }
    assert accuracy["banded"] < accuracy["identity"]


# --- options ----------------------------------------------------------------------------------------------------


def test_the_mechanism_of_both_halves_is_the_same() -> None:
    """The client's facts and the server's own count of participations lead to one price."""
    config = compose(["strategy=dpftrl", *OPTIONS[1:], "strategy.server.participations=3"])
    from fedpriv.client.build import make_client

    own = make_client(config)
    assert isinstance(own, DPFTRLClient) and own.pattern == (5, 3, 3)
    population = Population(0, 6, 2, lambda client: 10)
    half = making.server(DPFTRL, population, rounds=5, participations=3)
    planned = [replace(event, count=1) for event in own.planned_events(5) for _ in range(event.count)]
    assert sorted((event for events in half.events for event in events), key=repr) == sorted(planned, key=repr)
    assert isinstance(half.mechanism, MatrixMechanism)
