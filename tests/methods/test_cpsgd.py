"""cpSGD: rotation, levels, binomial noise, whole numbers on the wire, and Theorem 1."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import making
import numpy as np
import pytest
import torch
from conftest import Run, ledger_of, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.federation import FixedUpdates, make_site, take_part
from reference.recording import Conversation
from scipy import stats
from scipy.linalg import hadamard as hadamard_matrix

from clients.cpsgd import CpSGDClient
from fedpriv.client.contract import PublicFacts
from fedpriv.common.errors import OptionError
from fedpriv.common.seeds import public_signs
from fedpriv.config.compose import compose
from fedpriv.mechanisms import laws, whole_numbers
from fedpriv.mechanisms.integer_noise import pack, packed_size, unpack
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.mechanisms.secure_noise import SecureNoise
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.sum_grid import BinomialGrid, grid_for
from fedpriv.runs.preparation import resolve

DELTA, D = 1e-3, 200
FACTS = PublicFacts(600, 100, 128, 20, 10, D, 100)


def cpsgd(**options: Any) -> CpSGDClient:
    common = {"epsilon": 2.0, "claimed_delta": DELTA, "clip_norm": 1.0, "facts": FACTS, "levels": 16}
    return making.client(CpSGDClient, **common | options)


def vector(length: float = 1.0, size: int = D) -> torch.Tensor:
    drawn = torch.randn(size, generator=torch.Generator().manual_seed(3))
    return drawn * (length / drawn.norm())


# --- rotation ------------------------------------------------------------------------------------------------


def test_the_rotation_is_hadamards_matrix_with_random_signs():
    x = torch.randn(3, 16, dtype=torch.float64)
    assert torch.allclose(whole_numbers.hadamard(x), x @ torch.from_numpy(hadamard_matrix(16) / 4.0).double())
    signs = torch.from_numpy(public_signs(1, 2, 16)).double()
    turned = whole_numbers.rotate(x[:, :13], signs)
    assert turned.shape == (3, 16) and torch.allclose(turned.norm(dim=-1), x[:, :13].norm(dim=-1))
    assert torch.allclose(whole_numbers.rotate_back(turned, signs, 13), x[:, :13])
    assert [whole_numbers.padded(d) for d in (1, 2, 3, 650, 80_202)] == [1, 2, 4, 1024, 131_072]
    with pytest.raises(ValueError, match="power of two"):
        whole_numbers.hadamard(x[:, :13])


def test_rotation_spreads_one_large_coordinate():
    spike = torch.zeros(1000)
    spike[3] = 1.0
    turned = whole_numbers.rotate(spike, torch.from_numpy(public_signs(0, 1, 1024)))
    assert float(turned.abs().max()) < 1.01 / 32


def test_the_bound_of_a_coordinate_is_rarely_exceeded():
    bound, beyond = whole_numbers.coordinate_bound(1.0, 1024, 0.5), 0
    for server_round in range(200):
        turned = whole_numbers.rotate(vector(1.0, 1024), torch.from_numpy(public_signs(0, server_round, 1024)))
        beyond += int(bool((turned.abs() > bound).any()))
    assert 0 < beyond <= 100  # Hoeffding: in at most half of the rotations, and the bound is no idle one
    assert whole_numbers.coordinate_bound(2.0, 1024, 0.01) == pytest.approx(2 * math.sqrt(2 * math.log(204_800) / 1024))


# --- levels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [2, 3, 16])
def test_rounding_is_unbiased_and_keeps_to_its_levels(levels: int):
    values = torch.tensor([-1.0, -0.61, 0.0, 0.333, 1.0])
    uniform = SeededNoise(1).uniform((40_000, 5))
    found = whole_numbers.to_levels(values.expand(40_000, 5), 1.0, levels, uniform)
    assert int(found.min()) == 0 and int(found.max()) == levels - 1
    real = whole_numbers.from_noisy_levels(found, 1.0, levels, 0)
    assert torch.allclose(real.mean(0), values.double(), atol=4 * whole_numbers.grid_step(1.0, levels) / 2 / 200)
    assert float((real - values).abs().max()) <= whole_numbers.grid_step(1.0, levels) * (1 + 1e-12)
    assert whole_numbers.to_levels(torch.tensor([9.0, -9.0]), 1.0, levels, torch.tensor([0.5, 0.5])).tolist() == [
        levels - 1,
        0,
    ]


def test_one_level_is_no_quantisation():
    with pytest.raises(ValueError, match="levels=1: must be at least 2"):
        whole_numbers.grid_step(1.0, 1)
    with pytest.raises(OptionError, match=r"strategy\.(client|server)\.levels=1: must be at least 2"):
        compose(["strategy=cpsgd", "strategy.client.levels=1"])


@pytest.mark.parametrize("kind", [lambda: SeededNoise(7), SecureNoise])
def test_binomial_noise_is_binomial(kind: Any):
    for trials in (1, 2, 30):
        counts = np.bincount(kind().binomial(trials, 20_000).numpy(), minlength=trials + 1)
        expected = 20_000 * stats.binom.pmf(np.arange(trials + 1), trials, 0.5)
        common = expected > 5
        counts, expected = (np.r_[found[common], found[~common].sum()] for found in (counts, expected))
        filled = expected > 0
        assert stats.chisquare(counts[filled], expected[filled]).pvalue > 1e-5
    large = kind().binomial(10**9, 4000).double()
    assert stats.kstest((large.numpy() - 5e8) / math.sqrt(10**9 / 4), "norm").pvalue > 1e-5
    with pytest.raises(ValueError, match="binomial trials"):
        kind().binomial(-1, 3)


# --- the wire ------------------------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(1, 56), st.integers(0, 40), st.integers(0, 2**32), st.sampled_from("<>"))
def test_whole_numbers_travel_at_their_true_width(width: int, count: int, seed: int, order: str):
    """As a stream of bits, read by another way: one large number."""
    numbers = np.random.default_rng(seed).integers(0, 2**width, (3, count), dtype=np.uint64)
    packed = pack(numbers, width) if order == "<" else whole_numbers.pack_integers(numbers.view(np.int64), width)
    assert packed.shape == (3, packed_size(count, width)) == (3, -(-count * width // 8))
    for row, sent in zip(numbers, packed, strict=True):
        digits = [f"{number:0{width}b}" for number in row.tolist()]
        stream = "".join(digits) if order == ">" else "".join(reversed(digits))
        spare = 8 * len(sent) - count * width
        whole = int((stream + "0" * spare if order == ">" else stream) or "0", 2)
        assert int.from_bytes(sent.tobytes(), "big" if order == ">" else "little") == whole
        assert np.array_equal(unpack(sent, width, count, order), row)


@pytest.mark.parametrize("bits", [0, 57, 58, 63, 64])
def test_widths_that_a_word_does_not_hold_are_refused(bits: int):
    """The options allow as many bits as are packed: of more, the highest of a number would be lost."""
    for call in (lambda: pack(np.zeros(9, np.uint64), bits), lambda: unpack(np.zeros(80, np.uint8), bits, 9, "<")):
        with pytest.raises(OptionError, match=rf"strategy.server.bits={bits}: packed whole numbers have 1 to 56"):
            call()


@pytest.mark.parametrize("number", [-1, 2**13, 2**62])
def test_a_number_that_does_not_fit_is_not_packed_into_its_neighbour(number: int):
    numbers = np.array([3, number, 5], np.int64)
    with pytest.raises(ValueError, match=r"allowed: 0 to 2\^13 - 1"):
        pack(numbers, 13)


def test_long_vectors_are_packed_in_pieces(monkeypatch: pytest.MonkeyPatch):
    numbers = np.random.default_rng(0).integers(0, 2**13, (2, 1003), dtype=np.int64)
    whole, other = pack(numbers, 13), whole_numbers.pack_integers(numbers, 13)
    monkeypatch.setattr("fedpriv.mechanisms.integer_noise.AT_ONCE", 64)
    monkeypatch.setattr("fedpriv.mechanisms.whole_numbers.CHUNK", 64)
    assert np.array_equal(pack(numbers, 13), whole) and np.array_equal(whole_numbers.pack_integers(numbers, 13), other)
    assert np.array_equal(unpack(whole[1], 13, 1003, "<"), numbers[1])
    assert np.array_equal(unpack(other[1], 13, 1003, ">"), numbers[1])


def test_a_message_of_another_length_or_with_too_large_a_number_is_refused():
    grid = BinomialGrid(D, 1.0, 16, 1000)
    signs = torch.ones(grid.padded)
    with pytest.raises(ValueError, match="expected uint8"):
        grid.decode(np.zeros(3, np.uint8), signs)
    with pytest.raises(ValueError, match="a number of 1023, at most 1015"):
        grid.decode(np.full(grid.num_bytes, 255, np.uint8), signs)
    assert whole_numbers.width_of(1015) == 10 and grid.num_bytes == 256 * 10 // 8


# --- client and server ---------------------------------------------------------------------------------------


class Steps(FixedUpdates):
    config, lr = SimpleNamespace(lr=1.0), 1.0


def test_what_arrives_is_the_gradient_plus_noise_of_the_stated_size():
    step = vector(0.8)
    client = cpsgd(site=make_site(trainer=Steps(lambda _: -step)))
    decoded = []
    for server_round in range(1, 201):
        packed = take_part(client, server_round, np.zeros(D, np.float32))
        assert packed.dtype == np.uint8 and len(packed) == client.release_bytes(D)
        signs = torch.from_numpy(public_signs(3, server_round, 256))
        decoded.append(client.grid.decode(packed, signs))
    error = np.stack(decoded) - step.numpy()
    assert np.abs(error.mean()) < 4 * client.grid.std / math.sqrt(error.size)
    assert error.std() == pytest.approx(client.grid.std, rel=0.02)
    assert client.grid.std == pytest.approx(client.grid.step * math.sqrt(client.grid.trials) / 2)


def test_both_halves_agree_in_a_whole_run():
    """Enough noise for epsilon 1e5 only: the server's step is the clients' mean gradient up to the grid."""
    talk = Conversation("strategy=cpsgd", "strategy.client.epsilon=1e5", "num_rounds=2", "strategy.client.levels=1024")
    moved = talk.thetas[1] - talk.thetas[0]
    assert 0.2 * 0.1 < np.linalg.norm(moved) < 1.2 * 0.1  # eta times a mean of vectors of norm 1
    assert talk.plan.bytes_up == sum(
        len(reply.content["arrays"]["vector"].data) - 128
        for _, reply in talk.grid.seen  # type: ignore[index]
    )


# --- Theorem 1 -----------------------------------------------------------------------------------------------


def test_the_sensitivities_after_rounding_hold_and_are_not_far():
    """Two vectors rounded with the same uniforms: the page's D2 = 2C + s sqrt(d), D1, Dinf against the worst seen."""
    grid = BinomialGrid(64, 1.0, 5)
    l1, l2, linf = grid.sensitivities()
    assert l2 == pytest.approx(2 + grid.step * 8) and l1 == pytest.approx(8 * l2)
    assert linf == pytest.approx(4 * grid.step) == pytest.approx(2 * grid.bound)
    worst = np.zeros(3)
    for seed in range(300):
        noise = SeededNoise(seed)
        x = noise.normal(64)
        x, uniform = x / x.norm(), noise.uniform(64)
        levels = [whole_numbers.to_levels(v, grid.bound, 5, uniform) for v in (x, -x)]
        change = (levels[0] - levels[1]).double().abs() * grid.step
        worst = np.maximum(worst, [change.sum(), change.norm(), change.max()])
    assert (worst <= [l1, l2, linf]).all() and worst[1] > 0.55 * l2 and worst[2] == pytest.approx(linf)


def test_trials_are_the_fewest_that_the_theorem_allows():
    for sensitivity, examples in (("clip", 1), ("per_example", 600)):
        client = cpsgd(variant="published", sensitivity=sensitivity)
        grid = client.grid
        asked = grid.sensitivities(1.0 / examples)

        def bound(trials: int, grid: BinomialGrid = grid, asked: Any = asked) -> float:
            return laws.binomial_epsilon(grid.step, trials, 256, *asked, DELTA)

        assert bound(grid.trials) <= 2.0 < bound(grid.trials - 1)
    with pytest.raises(OptionError, match=r"strategy\.client\.epsilon=1e-09"):
        grid_for(D, 1.0, 16, None, 1e-9, DELTA)


def test_few_levels_drown_a_small_gradient_in_the_noise_of_their_rounding():
    """What the notes of DP-FedAGS's table IV say: C = 1 divided by 600 examples, 80,202 coordinates, epsilon 0.5."""
    few, many_levels = (grid_for(80_202, 1.0, levels, None, 0.5, 1e-3, None, 600).std for levels in (16, 16_384))
    gaussian = 2 / 600 * math.sqrt(2 * math.log(1.25 / 1e-3)) / 0.5
    assert few == pytest.approx(5.99, abs=0.005) and many_levels == pytest.approx(0.031, abs=0.0005)
    assert 1.2 < many_levels / gaussian < 1.3


def test_a_claim_is_the_theorem_at_the_true_sensitivity_and_a_round_keeps_it():
    published, repaired = cpsgd(variant="published"), cpsgd()
    for client in (published, repaired):
        grid = client.grid
        by_hand = laws.binomial_epsilon(grid.step, grid.trials, 256, *grid.sensitivities(), DELTA)
        claim = client.claim(3, DELTA)
        assert claim.epsilon == pytest.approx(by_hand) and claim.scope == "round"
    assert published.claim(1, DELTA).epsilon <= 2.0
    fewer = cpsgd(trials=repaired.grid.trials - 1)
    assert compose_events(repaired.planned_events(1), DELTA).epsilon <= 2.0
    assert compose_events(fewer.planned_events(1), DELTA).epsilon > 2.0
    reading = cpsgd(variant="published", sensitivity="per_example")
    assert reading.claim(1, DELTA).epsilon > 2.0  # per_example is no sensitivity: the theorem itself says so


def test_too_few_trials_have_no_bound():
    client = cpsgd(trials=50)
    assert not client.keeps_budget and cpsgd(trials=500).keeps_budget
    found = compose_events(client.planned_events(1), DELTA)
    assert math.isinf(found.epsilon) and "does not hold" in found.reasons[0]
    with pytest.raises(OptionError, match=r"privacy\.max_epsilon=10\.0: .*does not hold for so few"):
        resolve(compose(["strategy=cpsgd", "strategy.client.trials=5", "privacy.max_epsilon=10"]), None)
    with pytest.raises(OptionError, match=r"strategy\.server\.rounds=4: must be num_rounds=3"):
        compose(["strategy=cpsgd", "num_rounds=3", "strategy.server.rounds=4"])


def test_a_secure_sum_counts_the_noise_of_min_replies_less_colluders():
    own, together = (charge.event for charge in cpsgd(min_replies=8, colluders=3).charges(None))
    assert (own.threat.observer, together.threat.observer) == ("server", "secure-sum")
    assert own.trials * 5 == together.trials and own == replace(together, threat=own.threat, trials=own.trials)
    own, together = (
        charge.event for charge in cpsgd(variant="published", sensitivity="per_example", min_replies=8).charges(None)
    )
    assert own.trials == together.trials  # others may add less


@pytest.mark.parametrize("levels", [2, 5])
def test_the_audited_law_is_that_of_the_release(levels: int):
    """The audit draws a sum in one piece; here it is summed from what the release code sends."""
    client = cpsgd(levels=levels, facts=replace(FACTS, num_parameters=16), trials=4000)
    grid, (many, offset) = client.grid, client.widest()
    signs = torch.ones(16)
    rotated = torch.zeros(16)
    rotated[:many] = offset * grid.step
    vector = whole_numbers.rotate_back(rotated, signs, 16)
    real = []
    for seed in range(400):
        numbers, _ = grid.noisy_levels(vector, signs, SeededNoise(seed))
        centred = numbers[:many].double() - (levels - 1) / 2 - grid.trials / 2
        real.append(float(centred.sum()) / math.sqrt(many * grid.trials / 4))
    drawn = client.audit_release(1.0, None, (4000, 2), SeededNoise(9)).value[:, 0].numpy()
    assert stats.ks_2samp(real, drawn).pvalue > 1e-4
    shift = many * offset / math.sqrt(many * grid.trials / 4)
    assert np.mean(real) == pytest.approx(shift, abs=4 / 20) and np.std(real) == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize(("levels", "clip_norm"), [(2, 1.0), (3, 1.0), (16, 2.0), (1024, 1.0)])
def test_the_audited_vector_is_a_possible_one(levels: int, clip_norm: float):
    client = cpsgd(levels=levels, clip_norm=clip_norm)
    many, offset = client.widest()
    grid = client.grid
    assert 1 <= many <= grid.padded and offset * grid.step <= grid.bound * (1 + 1e-9)
    assert (offset + (levels - 1) / 2) % 1 == 0  # on a level
    assert many * (offset * grid.step) ** 2 <= clip_norm**2 * (1 + 1e-6)
    assert many * (offset * grid.step) ** 2 > 0.2 * clip_norm**2


# --- whole runs ----------------------------------------------------------------------------------------------


def test_a_run_books_both_observers_and_says_how_wide_a_coordinate_is(run: Run):
    folder = run("strategy=cpsgd", "strategy.client.epsilon=2", "strategy.server.min_replies=4")
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    assert privacy["verified_at_claimed_scope"] <= 2.0 * (1 + 1e-9)
    (other,) = privacy["others"]
    assert other["observer"] == "secure-sum" and other["verified_epsilon"] < privacy["verified_epsilon"]
    assert {entry["mechanism"] for entry in ledger_of(folder)} == {"binomial"}
    assert rows_of(folder)[0]["figures"]["clamped_share"] == 0.0
    wide = run("strategy=cpsgd", "strategy.client.epsilon=0.001", "strategy.client.levels=256", "num_rounds=1")
    reasons = json.loads((wide / "summary.json").read_text())["privacy"]["reasons"]
    assert any("bits: at this budget cpSGD sends no less" in reason for reason in reasons)
