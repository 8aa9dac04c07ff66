"""Mechanisms for unit vectors: their laws and moments against mathematics and Monte Carlo, and extreme inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

import fedpriv.mechanisms.privunit as privunit
from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.cohort_noise import CohortNoise
from fedpriv.mechanisms.noise import CPU, NoiseSource, SeededNoise, Shape
from fedpriv.mechanisms.privunit import direction, private_unit, release_unit, uniform_of
from fedpriv.mechanisms.secure_noise import SecureNoise
from fedpriv.mechanisms.unit_cap import best_cap, tail_quantile
from fedpriv.mechanisms.unit_vectors import UnitMechanism, best_bits, unit_mechanism
from fedpriv.privacy.gaussian_dp import gaussian_mu

NAMES = ("privunit", "projunit", "sqkr", "gaussian")
# A true null is refused once in 10^4 per test; the streams are fixed, so none fails by chance.
LEVEL = 1e-4
SIGMAS = 5.0


def vector(dimension: int, seed: int = 1) -> Tensor:
    return torch.randn(dimension, generator=torch.Generator().manual_seed(seed))


def mechanism(name: str, dimension: int = 32, epsilon: float = 4.0, **options: Any) -> UnitMechanism:
    return unit_mechanism(name, dimension, epsilon, **{"projections": 8, "std": 0.5} | options)


# --- the cap -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [2, 3, 64, 7850, 80_000])
@pytest.mark.parametrize("log_tail", [-0.7, -3.0, -40.0, -600.0, -690.0, -2000.0])
def test_the_tail_is_inverted_at_any_depth(dimension: int, log_tail: float) -> None:
    x, a = float(tail_quantile(dimension, np.array([log_tail]))[0]), mpmath.mpf(dimension - 1) / 2
    if x == 0:  # X underflows, and T is 1
        assert dimension <= 3 and log_tail <= -300 * (dimension - 1)
        return
    with mpmath.workdps(50):
        x = mpmath.mpf(x)
        series = mpmath.hyp2f1(2 * a, 1, a + 1, x)
        found = a * mpmath.log(x * (1 - x)) - mpmath.log(a) - mpmath.log(mpmath.beta(a, a)) + mpmath.log(series)
    assert float(found) == pytest.approx(log_tail, abs=1e-9)


@pytest.mark.parametrize("dimension", [2, 3, 10, 7850])
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0, 40.0])
def test_the_cap_is_the_best_and_costs_epsilon(dimension: int, epsilon: float) -> None:
    cap = best_cap(dimension, epsilon)
    assert math.log(cap.inside / cap.outside) - cap.log_measure + math.log1p(-cap.measure) == pytest.approx(epsilon)
    assert 0 <= cap.gamma <= 1 and cap.measure <= 0.5 and cap.inside + cap.outside == 1
    assert cap.gamma == pytest.approx(cap.mean, rel=1e-4)  # what makes m largest


@pytest.mark.parametrize(("dimension", "epsilon"), [(2, 1.0), (3, 2.0), (10, 4.0), (101, 8.0)])
def test_the_moments_are_those_of_the_law(dimension: int, epsilon: float) -> None:
    cap, a = best_cap(dimension, epsilon), (dimension - 1) / 2
    law = stats.beta(a, a)  # of (T + 1)/2
    assert law.sf((1 + cap.gamma) / 2) == pytest.approx(cap.measure, rel=1e-9)

    def moment(power: int) -> float:
        """With T = cos(t), whose density has no pole."""

        def weighed(t: float) -> float:
            density = math.sin(t) ** (dimension - 2) / math.exp(
                math.lgamma(a) + math.lgamma(0.5) - math.lgamma(a + 0.5)
            )
            inside = math.cos(t) >= cap.gamma
            return (
                math.cos(t) ** power
                * density
                * (cap.inside / cap.measure if inside else cap.outside / (1 - cap.measure))
            )

        edge = math.acos(cap.gamma)
        return sum(integrate.quad(weighed, low, high)[0] for low, high in ((0, edge), (edge, math.pi)))

    assert moment(0) == pytest.approx(1)
    assert moment(1) == pytest.approx(cap.mean)
    assert moment(2) == pytest.approx(cap.mean_square)


def test_figures_from_elsewhere() -> None:
    """An independent implementation's figures at d = 7,850, and d/E|release|^2 of PrivUnit and of SQKR."""
    cap = best_cap(7850, 8.0)
    assert cap.gamma == pytest.approx(0.030954, abs=3e-6) and cap.mean == pytest.approx(0.030952, abs=1e-6)
    assert cap.inside == pytest.approx(0.90102, abs=1e-4)
    for epsilon, whole, sqkr, gaussian in (
        (1.0, 0.158, 0.074, 0.018),
        (2.0, 0.619, 0.262, 0.063),
        (4.0, 2.30, 0.821, 0.214),
        (8.0, 7.52, 2.35, 0.694),
    ):
        std = 2 / gaussian_mu(epsilon, 1e-5)
        assert 7850 / unit_mechanism("privunit", 7850, epsilon).second_moment == pytest.approx(whole, rel=1e-2)
        assert 7850 / unit_mechanism("sqkr", 7850, epsilon).second_moment == pytest.approx(sqkr, rel=1e-2)
        assert 7850 / unit_mechanism("gaussian", 7850, epsilon, std=std).second_moment == pytest.approx(
            gaussian, rel=3e-2
        )
    assert [best_bits(epsilon) for epsilon in (1.0, 2.0, 4.0, 8.0)] == [1, 2, 4, 8]


def test_any_dimension_and_epsilon() -> None:
    for dimension in (1, 2, 3, 80_000, 11_000_000):
        for epsilon in (1.0, 8.0, 40.0, 500.0):
            setting = private_unit(dimension, epsilon)
            assert 0 < setting.cap.mean <= 1 and setting.law.epsilon == epsilon
            assert setting.cap.epsilon < epsilon <= setting.cap.epsilon * (1.5 if dimension > 10**7 else 1.02)
            assert setting.cap.inside <= setting.law.inside <= 1 / (1 + math.exp(-epsilon))


# --- the release -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["seeded", "secure"])
@pytest.mark.parametrize(("dimension", "epsilon"), [(300, 1.0), (300, 8.0), (3, 2.0), (64, 40.0)])
def test_the_release_has_the_exact_law(dimension: int, epsilon: float, source: str) -> None:
    """<V, u> is uniform in the cap's tail with probability p; the rest is uniform on what is orthogonal to u."""
    setting, many = private_unit(dimension, epsilon), 20_000
    cap, unit = setting.cap, direction(vector(dimension))
    noise = SeededNoise(7, dimension) if source == "seeded" else SecureNoise()
    level = LEVEL if source == "seeded" else 1e-9  # other draws every time
    released = release_unit(vector(dimension).expand(many, dimension), setting, noise).double() * cap.mean
    height = (released @ unit).numpy()
    tail = stats.beta.sf((1 + np.clip(height, -1, 1)) / 2, (dimension - 1) / 2, (dimension - 1) / 2)
    uniform = np.where(
        tail <= cap.measure,
        cap.inside * tail / cap.measure,
        cap.inside + cap.outside * (tail - cap.measure) / (1 - cap.measure),
    )
    if epsilon < 40:  # there the cap is narrower than what is added
        assert stats.kstest(uniform, "uniform").pvalue > level
    sideways = released - torch.outer(released @ unit, unit)
    sideways /= sideways.norm(dim=-1, keepdim=True)
    other = direction(vector(dimension, 2))
    other -= (other @ unit) * unit
    other /= other.norm()
    a = (dimension - 2) / 2
    angles = (1 + np.clip((sideways @ other).numpy(), -1, 1)) / 2
    assert stats.kstest(angles, stats.beta(a, a).cdf).pvalue > level


#: (keys, releases with each) of a mechanism, or of one at an epsilon.
PROJECTED = {1.0: (500, 16), 4.0: (1000, 16), 8.0: (2000, 8)}
KEYS: dict[Any, tuple[int, int]] = {
    **{(name, epsilon): of for name in ("projunit",) for epsilon, of in PROJECTED.items()},
    "sqkr": (500, 32),
}


@pytest.mark.rotates(3, lambda name, epsilon: NAMES.index(name) + int(epsilon) // 4)  # each at one epsilon
@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
@pytest.mark.parametrize("name", NAMES)
def test_estimates_are_unbiased_and_as_long_as_said(name: str, epsilon: float) -> None:
    """Errors are those of the keys' independent means. A key costs more than a release: where the projection's own
    randomness is little of the error, fewer keys with more releases each give the error of 4,000 keys (within 20 %).
    """
    sender = mechanism(name, 16, epsilon)
    keys, each = KEYS.get((name, epsilon)) or KEYS.get(name, (1000, 4))
    unit = direction(vector(16))
    means, squares = torch.empty(keys, 16, dtype=torch.float64), torch.empty(keys, dtype=torch.float64)
    for number in range(keys):
        key = (3, number)
        sent = sender.release(vector(16).expand(each, 16), key, SeededNoise(5, number))
        found = sender.decode(sent, key).double()
        means[number], squares[number] = found.mean(0), found.square().sum(-1).mean()
    error = means.std(0) / math.sqrt(keys)
    assert bool(((means.mean(0) - unit).abs() < SIGMAS * error).all())
    assert float(squares.mean()) == pytest.approx(
        sender.second_moment, abs=SIGMAS * float(squares.std()) / math.sqrt(keys) + 1e-4 * sender.second_moment
    )


def test_a_swapped_cap_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above is no formality: with the cap's complement in its place, the mean is another."""
    heights = privunit._heights
    monkeypatch.setattr(privunit, "_heights", lambda inside, *rest: heights(~inside, *rest))
    sender = mechanism("privunit", 16, 4.0)
    found = sender.release(vector(16).expand(4000, 16), ("k",), SeededNoise(1)).double().mean(0)
    assert float(found @ direction(vector(16))) < 0.5


# --- inputs that nobody should send ------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 501.0])
@pytest.mark.parametrize("name", ["privunit", "projunit", "sqkr"])
def test_an_epsilon_outside_its_range_is_refused(name: str, epsilon: float) -> None:
    with pytest.raises(OptionError, match="epsilon="):
        mechanism(name, epsilon=epsilon)


def test_an_epsilon_below_the_price_of_floating_point_is_refused() -> None:
    with pytest.raises(OptionError, match=r"epsilon=0\.05: must be at least 0\.\d+ for 11000000 coordinates"):
        private_unit(11_000_000, 0.05)
    private_unit(80_000, 0.05)


@pytest.mark.parametrize(("options", "words"), [({"bits": 17}, "bits=17"), ({"bits": 0}, "bits=0")])
def test_bits_and_mechanisms_that_there_are_not_are_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        mechanism("sqkr", **options)
    with pytest.raises(OptionError, match="mechanism=other"):
        mechanism("other")


def test_one_dimension_is_randomised_response() -> None:
    setting, many = private_unit(1, 1.0), 200_000
    released = release_unit(torch.full((many, 1), -3.0), setting, SeededNoise(1))
    share, truth = float((released < 0).float().mean()), math.e / (1 + math.e)
    assert share == pytest.approx(truth, abs=SIGMAS * math.sqrt(truth * (1 - truth) / many))
    assert bool((released.abs() == released.abs()[0]).all())
    assert float(released.abs()[0]) == pytest.approx(1 / math.tanh(0.5), rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_vector_without_a_direction_is_sent_as_the_first_axis(name: str) -> None:
    first = torch.eye(32)[0]
    broken = [torch.zeros(32), first * math.nan, torch.full((32,), math.inf), torch.full((32,), math.nan)]
    sender = mechanism(name)
    expected = sender.release(first, ("k",), SeededNoise(1))
    for given in broken:
        assert torch.equal(sender.release(given, ("k",), SeededNoise(1)), expected)
    batch = sender.release(torch.stack([*broken, first]), ("k",), SeededNoise(1))
    assert bool(torch.isfinite(batch.double()).all())


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1.0, 1e30, 1e38])
def test_only_the_direction_counts(scale: float) -> None:
    found = direction(vector(32).abs() * scale / 10)
    assert float(found.norm()) == pytest.approx(1, abs=1e-14)
    assert float(found @ direction(vector(32).abs())) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("scale", [5e-324, 3e-320, 1e-170, 1e-162, 1e-155, 1e-145, 1e150, 1e154, 1e200, 1e307])
def test_a_direction_is_of_length_one_where_squares_are_not_held(scale: float) -> None:
    """float64: squares below 1e-308 lose their digits or vanish, those above 1e308 are infinite."""
    small = torch.tensor([3.0, -4.0, 0.0, 12.0], dtype=torch.float64) * scale
    batch = torch.stack([small, vector(4).double(), torch.zeros(4).double(), small / 13])
    found = direction(batch)
    assert torch.allclose(found.norm(dim=-1), torch.ones(4).double(), rtol=0, atol=1e-14)
    assert found[0].tolist() == pytest.approx([3 / 13, -4 / 13, 0.0, 12 / 13], abs=1e-14)
    for row, alone in zip(batch, found, strict=True):
        assert torch.equal(direction(row), alone)


@pytest.mark.parametrize("dimension", [2, 3, 5])
def test_a_cap_narrower_than_its_blur(dimension: int) -> None:
    setting = private_unit(dimension, 40.0)
    released = release_unit(vector(dimension).expand(1000, dimension), setting, SeededNoise(2)).double()
    assert float((released @ direction(vector(dimension))).min()) > 0.9


# --- how randomness is drawn -------------------------------------------------------------------------------


class Tape(NoiseSource):
    """Draws for a batch, of which every row is also a source for one vector alone."""

    def __init__(self, rows: Sequence[int]) -> None:
        self.sources = [SeededNoise(11, row) for row in rows]

    def _rows(self, shape: Shape, draw: Any) -> Tensor:
        assert isinstance(shape, tuple) and shape[0] == len(self.sources)
        return torch.stack([draw(source, shape[1:]) for source in self.sources])

    def normal(self, shape: Shape, std: float = 1.0) -> Tensor:
        return self._rows(shape, lambda source, rest: source.normal(rest, std))

    def fine_normal(self, shape: Shape, std: float, device: torch.device = CPU) -> Tensor:
        return self._rows(shape, lambda source, rest: source.fine_normal(rest, std))

    def uniform(self, shape: Shape) -> Tensor:
        return self._rows(shape, lambda source, rest: source.uniform(rest))


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_its_vectors_one_by_one(name: str) -> None:
    sender, vectors = mechanism(name, 100), torch.stack([vector(100, seed) for seed in range(5)])
    together = sender.release(vectors, ("k",), Tape(range(5)))
    alone = torch.stack([sender.release(vectors[row], ("k",), SeededNoise(11, row)) for row in range(5)])
    if together.dtype == torch.uint8:
        assert torch.equal(together, alone)
    else:
        assert torch.allclose(together, alone, rtol=1e-6, atol=1e-6)
    assert torch.allclose(
        sender.decode(together, ("k",)), torch.stack([sender.decode(one, ("k",)) for one in alone]), atol=1e-4
    )


def test_words_make_a_uniform_with_all_its_digits() -> None:
    one = torch.tensor([[2**31, 0, 0], [0, 0, 1], [0, 0, 0], [2**32 - 1] * 3])
    found = uniform_of(one)
    assert found[0] == pytest.approx(0.5) and found[1] == 1.5 * 2.0**-96 and found[2] == 0.5 * 2.0**-96
    assert found.min() > 0 and found.max() <= 1


@pytest.mark.parametrize("dimension", [1, 2, 30, 10_000, 2**32])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 8.0, 20.0, 50.0, 200.0, 499.0, 500.0])
def test_words_lose_no_more_than_is_charged_for(dimension: int, epsilon: float) -> None:
    """At most 4 d + 4 uniforms, each blind to 2^-(32 words); all of them together D of the proof: (1 + e^epsilon) D is
    below the delta that is charged, of what is outside the cap where that is charged for. float64 holds the words.
    """
    for outside in (0.4, 1e-3, 2e-6, 1e-6, 1e-9, math.exp(-epsilon) / 2):
        if outside < math.exp(-epsilon) / 2:
            continue
        words = privunit._words(dimension, epsilon, outside)
        lost = (4 * mpmath.mpf(dimension) + 4) * mpmath.mpf(2) ** (-32 * words)
        charged_for = outside if outside >= 1e-6 else 1.0
        assert (1 + mpmath.exp(epsilon)) * lost <= 0.1 * privunit.DELTA * charged_for and words <= 31
        fewer = lost * mpmath.mpf(2) ** 32
        assert fewer > mpmath.exp(-epsilon - 2) * 1e-13 * max(outside, 1e-6)
    law = private_unit(100, 500.0).law
    assert law.delta == privunit.DELTA and law.inside == 1 / (1 + math.exp(-500.0))


def test_what_is_sent_lies_on_a_public_grid() -> None:
    """The low bits of a release are the grid's: they hold nothing of u."""
    setting = private_unit(100, 8.0)
    step = 2.0 ** (math.frexp(2.0**-7 / 10)[1] - 20)
    for seed in (1, 2):
        released = release_unit(vector(100, seed), setting, SecureNoise()).double() * setting.cap.mean / step
        assert float((released - released.round()).abs().max()) < 2.0**-24 * float(released.abs().max())
        assert float(released.abs().max()) > 2.0**20


@pytest.mark.parametrize(
    ("name", "width", "size"),
    [("privunit", 32, 4), ("projunit", 8, 4), ("sqkr", 1, 1)],
)
def test_what_is_sent(name: str, width: int, size: int) -> None:
    sender = mechanism(name)
    sent = sender.release(vector(32), ("k",), SeededNoise(1))
    assert sent.shape == (sender.width,) == (width,) and sent.element_size() == size and sent.dtype == sender.dtype
    assert mechanism("sqkr", bits=9).width == 2


@pytest.mark.parametrize("name", ["projunit", "sqkr"])
def test_another_key_is_another_projection(name: str) -> None:
    sender = mechanism(name)
    sent = sender.release(vector(32), ("one",), SeededNoise(1))
    assert not torch.equal(sender.decode(sent, ("one",)), sender.decode(sent, ("two",)))


def test_inner_products_of_several_clients_are_those_of_each() -> None:
    """A sum along a row of a table has another order."""
    left, right = torch.randn(2, 9, 7850, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    together = privunit._inner(left, right, CohortNoise([SeededNoise(client) for client in range(9)]))
    alone = [privunit._inner(own, other, SeededNoise(0)) for own, other in zip(left, right, strict=True)]
    assert torch.equal(together, torch.stack(alone))


@pytest.mark.parametrize("dimension", [1, 2, 3, 70])
def test_several_clients_release_what_each_releases_alone(dimension: int) -> None:
    """Also where Gaussians are too short and are drawn again: with each client's own draws."""
    setting, rows = private_unit(dimension, 2.0), torch.randn(60, dimension, generator=torch.Generator().manual_seed(1))
    sources = [SeededNoise("unit", client) for client in range(60)]
    together = release_unit(rows, setting, CohortNoise(sources))
    alone = [release_unit(row, setting, SeededNoise("unit", client)) for client, row in enumerate(rows)]
    assert torch.equal(together, torch.stack(alone))
