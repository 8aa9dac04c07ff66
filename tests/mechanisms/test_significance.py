"""DP-FedAGS's mathematics: schedule, comparison, selection, weights; and how partial releases travel."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from scipy import stats

from clients.fedags import noisy_comparison, scheduled_count, scheduled_rank, split_epsilon
from fedpriv.common.packing import pack_selected, packed_bytes, unpack_selected
from fedpriv.common.seeds import public_mask
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.mechanisms.significance import kth_largest, kth_smallest, largest, top_count
from strategies.fedags import FedAGS

# --- equation 35 ---------------------------------------------------------------------------------------------


loss_weights = FedAGS.weights_by_loss
SORTED = torch.tensor([5.0, -3.0, 0.0, 9.0, -7.0, 1.0, 8.0, -1.0, 2.0, 4.0, 3.0, -2.0])  # d = 12
IN_ORDER = [-7, -3, -2, -1, 0, 1, 2, 3, 4, 5, 8, 9]


@pytest.mark.parametrize(
    ("server_round", "rank"),
    # T = 20, d = 12: ceil(12 t/20), at most ceil(108/10) = 11
    [(1, 1), (2, 2), (5, 3), (6, 4), (10, 6), (17, 11), (18, 11), (19, 11), (20, 11), (25, 11)],
)
def test_the_threshold_of_a_hand_sorted_vector(server_round: int, rank: int):
    assert scheduled_rank(server_round, 20, 12) == rank
    assert float(kth_smallest(SORTED, rank)) == IN_ORDER[rank - 1]
    assert float(kth_largest(SORTED, rank)) == IN_ORDER[-rank]


@pytest.mark.parametrize("dimension", range(1, 10))
def test_the_schedule_of_few_coordinates_stays_within_them(dimension: int):
    ranks = [scheduled_rank(t, 20, dimension) for t in range(1, 21)]
    assert ranks[0] == 1 and ranks == sorted(ranks)
    assert ranks[17] == ranks[-1] == dimension  # ceil(0.9 d) = d


def test_the_schedule_uses_whole_numbers():
    """0.9 d in floating point is 90.00000000000001 for d = 100: one coordinate too many after rounding up."""
    assert math.ceil(100 * 1.1 - 20) == 91 and scheduled_rank(200, 200, 100) == 90
    assert scheduled_rank(7, 25, 100) == 28 and math.ceil(7 / 25 * 100) == 29


@pytest.mark.parametrize("bad", [(0, 10, 5), (1, 0, 5), (1, 10, 0), (-1, 10, 5)])
def test_no_rounds_or_coordinates_are_refused(bad: tuple[int, int, int]):
    with pytest.raises(ValueError, match="at least 1"):
        scheduled_rank(*bad)


@pytest.mark.parametrize("rank", [0, 13])
def test_a_rank_outside_the_vector_is_refused(rank: int):
    with pytest.raises(ValueError, match="from 1 to 12"):
        kth_smallest(SORTED, rank)
    with pytest.raises(ValueError, match="from 1 to 12"):
        largest(SORTED, rank)


@pytest.mark.parametrize("schedule", ["equation", "text"])
@pytest.mark.parametrize("server_round", [1, 7, 18, 20])
def test_without_noise_the_share_follows_the_schedule(schedule: str, server_round: int):
    values = torch.randn(3, 1000, generator=torch.Generator().manual_seed(1))
    rank = scheduled_rank(server_round, 20, 1000)
    threshold = kth_largest(values, rank) if schedule == "text" else kth_smallest(values, rank)
    chosen = noisy_comparison(values, threshold, torch.zeros(3, 1000), torch.zeros(3))
    expected = rank if schedule == "text" else 1000 - rank + 1
    assert chosen.sum(-1).tolist() == [expected] * 3
    assert scheduled_count(server_round, 20, 1000, schedule) == expected


def test_the_noise_of_the_comparison_moves_coordinates_and_threshold():
    values, alpha = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.5, 0.0, -1.5])
    assert noisy_comparison(values, torch.tensor(1.0), alpha, torch.tensor(0.0)).tolist() == [True, True, False]
    assert noisy_comparison(values, torch.tensor(1.0), alpha, torch.tensor(0.2)).tolist() == [True, False, False]


# --- the budget's split --------------------------------------------------------------------------------------


@pytest.mark.parametrize("selected", [1, 8, 1000, 80_202])
def test_the_split_sums_and_has_the_papers_ratio(selected: int):
    eps1, eps2, eps3 = split_epsilon(0.5, selected, 0.9)
    assert eps1 + eps2 + eps3 == pytest.approx(0.5, rel=1e-12)
    assert eps3 == pytest.approx(0.45) and eps1 / eps2 == pytest.approx(selected ** (2 / 3))
    assert min(eps1, eps2) > 0


# --- equation 37 ---------------------------------------------------------------------------------------------


def test_weights_that_follow_losses():
    examples, losses = [100, 300, 600], [0.5, 2.0, 0.1]
    found = loss_weights(examples, losses)
    by_hand = [(n * 2.6 + 1000 * loss) / (2 * 1000 * 2.6) for n, loss in zip(examples, losses, strict=True)]
    assert found == pytest.approx(by_hand, rel=1e-12) and sum(found) == pytest.approx(1)


def test_weights_at_the_papers_special_cases():
    examples = [100, 300, 600]
    assert loss_weights(examples, [0.7] * 3) == pytest.approx([(n / 1000 + 1 / 3) / 2 for n in examples])
    assert loss_weights(examples, [0.001 * n for n in examples]) == pytest.approx([n / 1000 for n in examples])
    assert loss_weights([50] * 4, [0.3] * 4) == pytest.approx([0.25] * 4)
    assert loss_weights(examples, [0.0] * 3) == [n / 1000 for n in examples]  # 0/0 in the formula
    assert loss_weights([0, 10], [0.0, 1.0]) == [0.0, 1.0]  # a client without examples
    assert sum(loss_weights(examples, [1.7e308] * 3)) == pytest.approx(1)  # whose sum is no double


@pytest.mark.parametrize(
    ("examples", "losses", "words"),
    [
        ([10, 10], [1.0, -0.1], "at least 0"),
        ([10, 10], [1.0, math.nan], "finite"),
        ([10, 10], [1.0, math.inf], "finite"),
        ([0, 0], [1.0, 1.0], "not all 0"),
        ([-1, 5], [1.0, 1.0], "at least 0"),
        ([10], [1.0, 1.0], "1 counts of examples, 2 losses"),
    ],
)
def test_impossible_losses_are_refused(examples: list[int], losses: list[float], words: str):
    with pytest.raises(ValueError, match=words):
        loss_weights(examples, losses)


# --- which coordinates ---------------------------------------------------------------------------------------


def test_the_largest_are_the_largest_and_exactly_as_many_with_ties():
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.7], [0.2, 0.2, 0.2, 0.2]])
    chosen = largest(scores, 2)
    assert chosen[0].tolist() == [False, True, False, True] and chosen.sum(-1).tolist() == [2, 2]


def test_a_share_is_at_least_one_coordinate():
    assert [top_count(share, 10) for share in (0.5, 1.0, 0.01)] == [5, 10, 1]


def test_a_public_mask_is_uniform_and_the_same_for_both_sides():
    counts = np.zeros(20)
    for server_round in range(2000):
        mask = public_mask(7, 3, server_round, 20, 6)
        assert mask.sum() == 6
        counts += mask
    assert stats.chisquare(counts, np.full(20, 600.0)).pvalue > 1e-4  # negatively dependent: a little more regular
    assert np.array_equal(public_mask(7, 3, 1, 20, 6), public_mask(7, 3, 1, 20, 6))
    others = [public_mask(7, 4, 1, 100, 50), public_mask(8, 3, 1, 100, 50), public_mask(7, 3, 2, 100, 50)]
    assert all(not np.array_equal(other, public_mask(7, 3, 1, 100, 50)) for other in others)
    assert public_mask(7, 3, 1, 5, 5).all()


def test_equal_keys_of_a_public_mask_still_give_the_right_number(monkeypatch: pytest.MonkeyPatch):
    class Constant:
        def integers(self, low: int, high: int, size: int, dtype: type) -> np.ndarray:
            return np.zeros(size, np.uint64)

    monkeypatch.setattr("fedpriv.common.seeds.generator", lambda *key: Constant())
    assert public_mask(0, 0, 0, 10, 4).sum() == 4


def test_gumbel_picks_follow_the_exponential_mechanism():
    """One pick of three with scale b: P(j) is proportional to exp(score/b); b twice as large is told apart."""
    scores, scale, trials = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64), 0.5, 40_000
    noise = SeededNoise(5).gumbel((trials, 3), scale)
    counts = largest(scores + noise, 1).sum(0).numpy()
    weights = np.exp(scores.numpy() / scale)
    assert stats.chisquare(counts, trials * weights / weights.sum()).pvalue > 1e-4
    wrong = np.exp(scores.numpy() / (2 * scale))
    assert stats.chisquare(counts, trials * wrong / wrong.sum()).pvalue < 1e-10


# --- on the wire ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dimension", "count"), [(40, 1), (40, 39), (1000, 20), (1000, 500), (9, 9), (7, 1)])
def test_selected_values_travel_with_their_places(dimension: int, count: int):
    rng = np.random.default_rng(dimension + count)
    mask = np.zeros(dimension, bool)
    mask[rng.choice(dimension, count, replace=False)] = True
    values = rng.normal(size=dimension).astype(np.float32)
    packed = pack_selected(values, mask)
    assert len(packed) == packed_bytes(dimension, count) <= 4 * count + min(4 * count, -(-dimension // 8))
    assert np.array_equal(unpack_selected(packed, dimension, count), np.where(mask, values, 0))


@pytest.mark.parametrize("count", [2, 30])  # indices; bitmap
def test_a_message_that_does_not_hold_so_many_places_is_refused(count: int):
    dimension = 100
    mask = np.zeros(dimension, bool)
    mask[:count] = True
    packed = pack_selected(np.ones(dimension, np.float32), mask)
    torn, twice = packed[:-1], packed.copy()
    twice[0] = 0 if count == 30 else 1  # a bit is missing; places 1, 1
    beyond = packed.copy()
    beyond[: -4 * count] = 255
    for bad in (torn, twice, beyond, packed.astype(np.int16)):
        with pytest.raises(ValueError, match="expected"):
            unpack_selected(bad, dimension, count)


def test_selection_of_eleven_million_coordinates_takes_no_sort():
    """Not a benchmark: a full sort would take ten times as long."""
    values = torch.randn(11_000_000, generator=torch.Generator().manual_seed(0))
    torch.set_num_threads(1)
    began = time.process_time()
    chosen = largest(values, 5_000_000)
    mask = public_mask(0, 0, 1, len(values), 5_000_000)
    assert time.process_time() - began < 4
    assert int(chosen.sum()) == int(mask.sum()) == 5_000_000
