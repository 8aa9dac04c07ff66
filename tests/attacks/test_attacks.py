"""Membership inference, part by part: figures by hand, who may be in which set, scores whose sign matters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import beta, binom, norm
from torch import nn

from fedpriv.attacks import controls, lira, ml_leaks
from fedpriv.attacks.classifier import learn
from fedpriv.attacks.metrics import (
    auc,
    balanced_accuracy,
    best_threshold,
    judge,
    operating_point,
    proportion,
    roc,
)
from fedpriv.attacks.subject import Scored, Subject, Trained
from fedpriv.attacks.targets import OverlapError, Sides, Targets, TooFewExamples, choose, singles
from fedpriv.attacks.view import View, logit_confidence, sorted_log_posteriors
from fedpriv.config.schema import ModelConfig
from fedpriv.data import Dataset, Examples
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.mechanisms.tasks import of_classes
from fedpriv.training.models import build_model
from fedpriv.training.sequential import FlatModel

RNG = np.random.default_rng


# --- metrics ---------------------------------------------------------------------------------------------


def test_proportion_has_clopper_and_pearsons_interval() -> None:
    found = proportion(8, 10, 0.95)  # R: binom.test(8, 10)
    assert (found.value, found.low, found.high) == pytest.approx((0.8, 0.4439045, 0.9747893), abs=1e-6)
    assert (proportion(0, 10, 0.95).low, proportion(10, 10, 0.95).high) == (0.0, 1.0)
    assert proportion(0, 10, 0.95).high == pytest.approx(1 - 0.025**0.1)


def test_balanced_accuracy_by_hand() -> None:
    members, others = np.array([3.0, 2, 1, -1]), np.array([0.0, -1, 1, -2, -3])
    found = balanced_accuracy(members, others, 0.0)
    assert found.value == pytest.approx((3 / 4 + 4 / 5) / 2)  # a non-member at the threshold is refused
    right, refused = proportion(3, 4, 0.95), proportion(4, 5, 0.95)
    assert found.value - found.low == pytest.approx(math.hypot(0.75 - right.low, 0.8 - refused.low) / 2)
    assert found.high - found.value == pytest.approx(math.hypot(right.high - 0.75, refused.high - 0.8) / 2)
    assert balanced_accuracy(-members, -others, 0.0).value < 0.5


def test_interval_of_balanced_accuracy_covers() -> None:
    """Members right with 0.7, non-members with 0.6: the mean is 0.65. At least 95 % up to the error of 400 trials."""
    rng = RNG(0)
    found = [
        balanced_accuracy((rng.random(60) < 0.7).astype(float), 1 - (rng.random(80) < 0.6).astype(float), 0.5)
        for _ in range(400)
    ]
    covered = np.mean([one.low <= 0.65 <= one.high for one in found])
    assert 0.93 <= covered <= 1.0
    assert np.mean([one.high - one.low for one in found]) < 0.2


def test_auc_by_hand() -> None:
    members, others = np.array([3.0, 2.0]), np.array([1.0, 2.0])
    assert auc(members, others).value == 3.5 / 4  # 3 > 1, 3 > 2, 2 > 1, and half for 2 = 2
    assert auc(others, members).value == 0.5 / 4
    rng = RNG(1)
    members, others = rng.normal(0.7, 1, 40), rng.normal(0, 1, 55)
    wins = (members[:, None] > others) + 0.5 * (members[:, None] == others)
    spread = math.sqrt(wins.mean(1).var(ddof=1) / 40 + wins.mean(0).var(ddof=1) / 55)  # DeLong, written out
    found, mean = auc(members, others), wins.mean()
    weight = 2 / (2 + 40 * min(mean, 1 - mean))  # of the largest variance beside DeLong's, in comparisons
    pairs = mean * (1 - mean) / (weight * mean * (1 - mean) / 40 + (1 - weight) * spread**2)
    ends = beta.ppf([0.025, 0.975], [pairs * mean, pairs * mean + 1], [pairs * (1 - mean) + 1, pairs * (1 - mean)])
    assert (found.value, found.low, found.high) == pytest.approx((mean, *ends))
    turned = auc(others, members)
    assert (turned.low, turned.high) == pytest.approx((1 - found.high, 1 - found.low))
    alike = auc(np.ones(20), np.ones(30))
    assert alike.value == 0.5 and alike.low == pytest.approx(1 - alike.high)
    for confidence in (0.95, 0.998):  # of 20 others none is above: likelier than 1 - confidence if less than p are
        p = 1 - (1 - confidence) ** (1 / 20)
        assert auc(np.arange(30.0, 90.0), np.arange(20.0), confidence).low <= 1 - p


@pytest.mark.parametrize("area", [0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize(("m", "n"), [(10, 10), (20, 100), (100, 100)])
def test_interval_of_auc_covers(area: float, m: int, n: int) -> None:
    """100 draws of each law, of which the interval holds the truth in 95 % or more."""
    rng, covered, widths = RNG(m + n), list[bool](), list[float]()
    for law in ("alike", "wide members", "exponential", "few below all"):
        for _ in range(100):
            members, others = rng.normal(size=m), rng.normal(size=n)
            if law == "exponential":
                members, others = rng.exponential(area / (1 - area), m), rng.exponential(1, n)
            elif law == "few below all":  # the largest variance that there is
                members += np.where(rng.random(m) < area, 20, -20)
            else:
                wide = 1 if law == "alike" else 3
                members = norm.ppf(area) * math.hypot(wide, 1) + wide * members
            found = auc(members, others)
            covered.append(found.low <= area <= found.high)
            widths.append(found.high - found.low)
    assert np.mean(covered) >= 0.94
    assert np.mean(widths) < 2.5 * 1.96 * math.sqrt(area * (1 - area) / min(m, n)) + 2 / min(m, n)


def test_a_true_positive_rate_is_at_a_threshold_and_never_interpolated() -> None:
    others = np.arange(1000.0)
    members = np.array([988.5, 989.0, 989.5, 2000.0])
    point = operating_point(members, others, 0.01)
    assert point is not None
    # Ten non-members lie above 989; lowering the threshold below it would let an eleventh through.
    assert point.false_positives.value == 0.01
    assert point.true_positives.value == 2 / 4
    tied = operating_point(members, np.full(1000, 5.0), 0.01)
    assert tied is not None and (tied.true_positives.value, tied.false_positives.value) == (1.0, 0.0)
    nothing = operating_point(np.full(10, 5.0), np.full(1000, 5.0), 0.01)
    assert nothing is not None and nothing.true_positives.value == 0.0


def test_a_small_rate_needs_enough_non_members() -> None:
    scores = RNG(0).normal(size=10_000)
    assert operating_point(scores[:50], scores[:999], 0.01) is None
    assert operating_point(scores[:50], scores[:1000], 0.01) is not None
    judged = judge(scores[:50], scores[:9_999], 0.0)
    assert judged.at_rates[0.01] is not None and judged.at_rates[0.001] is None
    assert judge(scores[:50], scores, 0.0).at_rates[0.001] is not None
    with pytest.raises(ValueError, match="finite"):
        judge(np.array([1.0, np.nan]), scores, 0.0)


def test_roc_is_a_staircase_from_nothing_to_everything() -> None:
    false, true = roc(np.array([3.0, 1.0]), np.array([2.0, 0.0]))
    assert false.tolist() == [0, 0, 0.5, 0.5, 1] and true.tolist() == [0, 0.5, 0.5, 1, 1]


def test_best_threshold_separates_what_is_known() -> None:
    threshold = best_threshold(np.array([4.0, 5.0, 1.0]), np.array([0.0, 2.0, 3.0]))
    assert threshold == 3.5


# --- who may be where ------------------------------------------------------------------------------------


def rows(*ranges: tuple[int, int]) -> list[np.ndarray]:
    return [np.arange(low, high) for low, high in ranges]


@pytest.mark.parametrize(("one", "other"), combinations(range(6), 2))
def test_overlap_is_an_error(one: int, other: int) -> None:
    parts = rows((0, 30), (30, 60), (60, 90), (90, 120), (120, 150), (150, 180))
    Targets(Sides(*parts[:2]), Sides(*parts[2:4]), Sides(*parts[4:]))
    parts[other] = np.append(parts[other][1:], parts[one][7])
    with pytest.raises(OverlapError, match=f"share 1 rows, the first is {parts[one][7]}"):
        Targets(Sides(*parts[:2]), Sides(*parts[2:4]), Sides(*parts[4:]))


def test_a_row_twice_on_one_side_is_an_error() -> None:
    parts = rows((0, 30), (30, 60), (60, 90), (90, 120))
    parts[0] = np.append(parts[0], 3)
    with pytest.raises(OverlapError, match="twice"):
        Targets(Sides(*parts[:2]), Sides(*parts[2:4]))


LABELS = RNG(0).integers(0, 5, 2000)


def chosen(clients: list[np.ndarray], **options: object) -> Targets:
    settings: dict = {"by_coin": True, "most": 200, "known_share": 0.25, "rng": RNG(4)} | options
    outsiders = settings.pop("outsiders", np.arange(1000, 2000))
    return choose(clients, outsiders, LABELS, **settings)


def test_members_come_from_clients_non_members_from_outside_and_the_attacker_is_a_client() -> None:
    clients = rows((0, 100), (100, 200), (200, 300), (300, 400))
    targets = chosen(clients)
    evaluated, known = targets.evaluated, targets.known
    owners = {int(row) // 100 for row in known.members}
    assert len(owners) == 1 and owners.isdisjoint({int(row) // 100 for row in evaluated.members})
    assert evaluated.members.max() < 400 and evaluated.others.min() >= 1000 and known.others.min() >= 1000
    assert len(targets.pairs) > 350 and targets.rest.others.min() >= 1000
    for sides in (evaluated, known):
        assert len(sides.members) == len(sides.others) > 80
        assert (LABELS[sides.members] == LABELS[sides.others]).all()
        assert np.bincount(LABELS[sides.members]).tolist() == np.bincount(LABELS[sides.others]).tolist()
    assert len(evaluated.members) == 200


def test_classes_are_matched_where_members_have_few_classes() -> None:
    clients = [np.flatnonzero(LABELS[:1000] == label) for label in range(2)]
    targets = chosen(clients)
    assert set(LABELS[targets.evaluated.others]) <= {0, 1} and len(set(LABELS[targets.evaluated.others])) == 1


def test_one_client_is_divided_and_too_few_are_refused() -> None:
    targets = chosen(rows((0, 400)))
    assert np.intersect1d(targets.known.members, targets.evaluated.members).size == 0
    assert 80 <= len(targets.known) <= 100
    with pytest.raises(TooFewExamples, match=r"at least 20 are needed.*dataset\.train_examples"):
        chosen(rows((0, 10), (10, 20)))
    with pytest.raises(TooFewExamples, match="no client"):
        chosen([])


def test_to_exchange_a_member_for_its_partner_turns_one_coin_and_nothing_else() -> None:
    """Whoever of a pair was drawn into the run, in the same place, the same pairs are evaluated, known and left over:
    members and non-members are alike to `choose`.
    """
    clients = rows((0, 100), (100, 200), (200, 300), (300, 400))
    targets = chosen(clients)
    before = np.stack([targets.pairs.members, targets.pairs.others])
    for number in range(0, len(targets.pairs), 13):
        member, other = before[:, number]
        exchange = {int(member): int(other), int(other): int(member)}
        turned = [np.array([exchange.get(int(row), row) for row in part]) for part in (*clients, np.arange(1000, 2000))]
        found = chosen(turned[:-1], outsiders=turned[-1])
        after = np.stack([found.pairs.members, found.pairs.others])
        assert [len(found.evaluated), len(found.known)] == [len(targets.evaluated), len(targets.known)]
        assert after[:, number].tolist() == [other, member]
        assert (np.delete(after, number, 1) == np.delete(before, number, 1)).all()


def test_copies_are_left_out_wherever_they_are() -> None:
    images = RNG(0).integers(0, 255, (10, 1, 4, 4)).astype(np.uint8)
    images[7], images[9] = images[2], images[8]
    assert singles(images, np.arange(10)).tolist() == [0, 1, 3, 4, 5, 6]
    assert singles(images, np.arange(3, 9)).tolist() == [3, 4, 5, 6, 7, 8]


# --- what is read off a model ----------------------------------------------------------------------------


def test_confidence_on_the_logit_scale_keeps_what_a_probability_rounds_away() -> None:
    logits = RNG(0).normal(size=(50, 4))
    labels = RNG(1).integers(0, 4, 50)
    p = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True))[np.arange(50), labels]
    assert logit_confidence(logits, labels) == pytest.approx(np.log(p / (1 - p)))
    certain = logit_confidence(np.array([[60.0, 0, 0], [80.0, 0, 0]]), np.zeros(2, dtype=int))
    assert certain == pytest.approx([60 - math.log(2), 80 - math.log(2)])
    sorted_odds = sorted_log_posteriors(np.array([[0.0, 3.0, 1.0, 2.0]]), 3)
    assert np.argsort(-sorted_odds[0]).tolist() == [0, 1, 2]
    assert sorted_odds[0, 0] == pytest.approx(3 - math.log(math.exp(0) + math.exp(1) + math.exp(2)))


def single_gradient_norms(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """Block by block, one example at a time."""
    found = []
    for image, label in zip(images, labels, strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(image[None]), label[None]).backward()
        blocks = [block for block in model.children() if list(block.parameters())]
        found.append([math.sqrt(sum(float(p.grad.square().sum()) for p in block.parameters())) for block in blocks])
    return np.array(found)


@pytest.mark.parametrize("mode", [None, "vmap"])
@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_gradient_norms_of_blocks(name: str, mode: str | None) -> None:
    torch.manual_seed(0)
    module = build_model(ModelConfig(name=name), (1, 16, 16), 5, seed=0)
    images, labels = torch.randn(7, 1, 16, 16), torch.randint(0, 5, (7,))
    names, norms, losses = PerExampleGradients(module, mode, physical=3).block_norms(images, labels)
    assert names == [block for block, _ in module.named_children()]
    assert norms.numpy() == pytest.approx(single_gradient_norms(module, images, labels), rel=1e-4)
    expected = nn.functional.cross_entropy(module(images), labels, reduction="none")
    assert losses.detach().numpy() == pytest.approx(expected.detach().numpy(), rel=1e-5)


@pytest.fixture
def view() -> View:
    """An untrained network on random pictures, which are their own pool."""
    images = RNG(0).integers(0, 255, (300, 1, 8, 8)).astype(np.uint8)
    pictures = Examples(images, RNG(1).integers(0, 3, 300))
    pool = Dataset("noise", pictures, pictures, of_classes(("a", "b", "c")), (0.5,), (0.5,))
    return View(FlatModel(build_model(ModelConfig(name="mlp", hidden=16), (1, 8, 8), 3, 0)), pool)


def test_a_view_reads_the_layer_before_the_last(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    theta = view.model.theta.clone().numpy()
    monkeypatch.setattr("fedpriv.attacks.view.BATCH", 7)
    chosen_rows = np.array([5, 200, 3, *range(20, 40)])
    losses, norms, hidden = view.inside(theta, chosen_rows)
    assert norms.shape == (23, 2) and hidden.shape == (23, 16) and hidden.min() == 0  # behind a ReLU
    confidence = view.confidence(theta, chosen_rows)
    assert losses == pytest.approx(np.log1p(np.exp(-confidence)), rel=1e-4)  # row by row the same examples
    weight, bias = (p.detach().numpy() for p in list(view.model.module.parameters())[-2:])
    assert view.logits(theta, chosen_rows) == pytest.approx(hidden @ weight.T + bias, abs=1e-4)


# --- attacks ---------------------------------------------------------------------------------------------


def test_liras_score_is_the_ratio_of_two_gaussians() -> None:
    """Shadows 0 and 1 were trained with the first example, 2 and 3 with the second; the shifts are alike."""
    seen = np.array([[2.0, 10.0], [4.0, 12.0], [0.0, 12.0], [2.0, 14.0]])
    inside = np.array([[True, False], [True, False], [False, True], [False, True]])
    variance = 8 / 4  # eight deviations of 1, four means
    expected = [2 * (3.0 - 2.0) / variance, 2 * (11.0 - 12.0) / variance]
    assert lira.likelihood_ratio(np.array([3.0, 11.0]), seen, inside) == pytest.approx(expected)


def test_lira_listens_to_examples_that_membership_moves() -> None:
    """Membership moves every second example by 4; members score higher, and those examples most."""
    rng = RNG(0)
    inside = rng.random((16, 400)) < 0.5
    shift = np.where(np.arange(400) % 2, 4.0, 0.0)
    member = rng.random(400) < 0.5
    level = rng.normal(0, 5, 400)
    seen, confidence = (level + part * shift + rng.normal(size=part.shape) for part in (inside, member))
    scores = lira.likelihood_ratio(confidence, seen, inside)
    moved = shift > 0
    assert auc(scores[moved & member], scores[moved & ~member]).value > 0.95
    assert np.abs(scores[moved]).mean() > 10 * np.abs(scores[~moved]).mean()


def test_lira_scores_what_all_shadow_models_have_or_none() -> None:
    seen, inside = RNG(0).normal(size=(4, 3)), np.array([[True, False, True]] * 2 + [[True, False, False]] * 2)
    seen += 3 * inside
    scores = lira.likelihood_ratio(np.array([0.0, 3.0, 3.0]), seen, inside)
    assert np.isfinite(scores).all() and scores[0] < 0 < scores[1]


def test_ml_leaks_learns_from_no_evaluated_picture(view: View) -> None:
    parts = rows((0, 30), (30, 60), (60, 90), (90, 120), (120, 160), (160, 200))
    targets = Targets(Sides(*parts[:2]), Sides(*parts[2:4]), Sides(*parts[4:]))
    asked: list[int] = []
    real = view.logits
    view.logits = lambda theta, rows: (asked.extend(rows.tolist()), real(theta, rows))[1]  # type: ignore[method-assign]
    theta = view.model.theta.clone().numpy()
    shadow = Trained(theta * 1.1, rows=np.sort(targets.pairs.turned(RNG(0).random(100) < 0.5).members))
    assert len(ml_leaks.attack(view, Subject(Trained(theta), [shadow]), targets).members) == 30
    assert sorted(asked[:140]) == list(range(60, 200)) and sorted(asked[140:]) == list(range(60))


def test_the_classifier_weighs_kinds_of_features_alike() -> None:
    """One telling feature beside sixty that say nothing, and few examples to learn from."""
    rng = RNG(0)

    def examples(count: int, shift: float) -> np.ndarray:
        return np.column_stack([rng.normal(shift, 1, count), rng.normal(size=(count, 60))])

    classifier = learn(examples(40, 1.5), examples(40, 0.0), groups=[1, 60])
    plain = learn(examples(40, 1.5), examples(40, 0.0))
    members, others = examples(2000, 1.5), examples(2000, 0.0)
    assert auc(classifier(members), classifier(others)).low > auc(plain(members), plain(others)).high


def normal(shift: float, count: int = 500) -> Callable[[int], Scored]:
    return lambda seed: Scored(RNG(seed).normal(shift, 1, count), RNG(seed + 1).normal(0, 1, count), shift / 2)


def test_controls() -> None:
    assert controls.positive(normal(1.0)(0)).passed
    assert not controls.positive(normal(0.0)(0)).passed and not controls.positive(normal(-1.0)(0)).passed
    assert not controls.negative(normal(1.0)(0)).passed
    assert not controls.negative(normal(-1.0)(0)).passed  # what is worse than chance is not at chance
    assert sum(not controls.negative(normal(0.0)(seed)).passed for seed in range(0, 400, 2)) <= 2
    # A wrong threshold hides a leak from the balanced accuracy; the AUC sees it.
    leak = normal(1.0)(0)
    assert not controls.negative(Scored(leak.members, leak.others, 50.0)).passed
    assert "failed" in str(controls.positive(normal(0.0)(0)))


@pytest.mark.parametrize("pairs", [20, 40, 200])
def test_the_negative_control_keeps_its_error_where_the_model_leaks(pairs: int) -> None:
    """A model trained on one example of every pair tells it from the other. Who is called the member is a coin."""
    heads = np.arange(pairs + 1)
    failed = []
    for right in heads:
        members = (np.arange(pairs) < right).astype(float)
        found = controls.negative(Scored(members, 1 - members, 0.5))
        assert found.balanced_accuracy.value == pytest.approx(balanced_accuracy(members, 1 - members, 0.5).value)
        assert found.auc.value == pytest.approx(auc(members, 1 - members).value)
        failed.append(not found.passed)
    error = float(binom.pmf(heads, pairs, 0.5)[failed].sum())
    assert failed[0] and failed[-1] and 1e-7 < error <= 1 - controls.CONFIDENCE


def test_no_weighted_sum_of_signs_exceeds_its_gaussian_bound_and_two_reach_it() -> None:
    """All signs of twelve weights."""
    signs, rng, nearest = np.array(list(itertools.product([-1, 1], repeat=12))), RNG(0), 0.0
    some = [np.arange(12) < count for count in range(1, 13)] + [rng.pareto(1.0, 12) for _ in range(30)]
    for weights in some:
        reached = np.sort(signs @ (weights / np.linalg.norm(weights)))[::-1]
        shares = np.searchsorted(-reached, -reached + 1e-9, side="right") / len(signs)  # P(sum >= x) at every x
        ratio = shares / (controls.SIGNS * norm.sf(reached))
        nearest = max(nearest, ratio[reached > 0].max())
    assert nearest == pytest.approx(1.0, abs=1e-6)


def test_the_negative_control_of_scores_that_differ_keeps_its_error() -> None:
    """20 pairs of scores, half of them told apart; 10,000 draws of the coins."""
    rng = RNG(0)
    scores = rng.normal(size=(2, 20)) + np.array([[3.0], [0.0]]) * (np.arange(20) < 10)
    draws = rng.random((10_000, 20)) < 0.5
    failed = sum(
        not controls.negative(Scored(np.where(coins, *scores), np.where(coins, *scores[::-1]), 1.0)).passed
        for coins in draws
    )
    assert failed <= binom.ppf(0.999, len(draws), 1 - controls.CONFIDENCE)


def test_pooled_scores_keep_their_thresholds() -> None:
    parts = [Scored(np.array([5.0, 6.0]), np.array([1.0]), 4.0), Scored(np.array([-1.0]), np.array([-3.0, 0.0]), -2.0)]
    pooled = Scored.pooled(parts)
    assert pooled.members.tolist() == [1, 2, 1] and pooled.others.tolist() == [-3, -1, 2] and pooled.threshold == 0


# --- which pictures a run uses ---------------------------------------------------------------------------


def test_a_run_can_be_limited_to_some_training_pictures() -> None:
    from fedpriv.config.compose import compose
    from fedpriv.data.load import load_federated

    def used(*overrides: str) -> np.ndarray:
        return np.sort(load_federated(compose(["num_clients=4", "clients_per_round=4", *overrides])).partition.indices)

    few = used("dataset.train_examples=200")
    assert len(np.unique(few)) == 200 and few.max() > 1000
    assert few.tolist() == used("dataset.train_examples=200").tolist()
    assert few.tolist() != used("dataset.train_examples=200", "seed=1").tolist()
    assert len(used()) == 1437


def test_a_split_of_ones_own(tmp_path: Path) -> None:
    from fedpriv.common.errors import OptionError
    from fedpriv.config.compose import compose
    from fedpriv.data.load import load_federated, load_pool
    from fedpriv.data.partition import Split, write_split

    def load(split: Split) -> tuple[list[int], list[int]]:
        write_split(tmp_path / "own.npz", split)
        config = compose(["num_clients=4", "clients_per_round=4", f"dataset.split={tmp_path / 'own.npz'}"])
        data = load_federated(config, auxiliary=3)
        assert np.intersect1d(data.auxiliary, data.test).size == 0
        assert len(data.dataset.train) == len(load_pool(config.dataset, 0).train) == 1797
        return sorted(data.partition.indices.tolist()), sorted([*data.test.tolist(), *data.auxiliary.tolist()])

    train, test = [1, 5, 900, 1500, 1796], [0, 2, 1600, 1700]
    assert load(Split(np.array(train), np.array(test))) == (train, test)
    for wrong in ([0, 7000], [3, 3], [0, 1]):
        with pytest.raises(OptionError, match=r"^dataset\.split="):
            load(Split(np.array(train), np.array(wrong)))
