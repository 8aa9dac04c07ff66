"""Normal noise over a random sample: of a client's examples, or of the clients."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from fedpriv.privacy.events.event import Event, check_amplifies, check_number, check_whole, without_noise
from fedpriv.privacy.events.gaussians import gaussian_renyi

if TYPE_CHECKING:
    from fedpriv.mechanisms.laws import Vector


class _Sampled(Event):
    """A Gaussian over a sample, which may be always empty (nothing is released) or always everybody (a Gaussian)."""

    multiplier: float

    @property
    @abstractmethod
    def is_silent(self) -> bool:
        """Whether the sample is always empty, so that nothing is released."""

    @property
    @abstractmethod
    def takes_all(self) -> bool:
        """Whether the sample is always everybody."""

    @abstractmethod
    def amplified_renyi(self, orders: Vector) -> Vector:
        """The curve of a sample that is neither."""

    @property
    def gaussian_multiplier(self) -> float | None:
        return self.multiplier if self.takes_all else None

    def why_unbounded(self) -> str | None:
        return None if self.is_silent else without_noise(self.multiplier)

    def pure_epsilon(self) -> float:
        return 0.0 if self.is_silent else math.inf

    def renyi(self, orders: Vector) -> Vector:
        if self.is_silent:
            return 0 * orders
        return gaussian_renyi(self.multiplier, orders) if self.takes_all else self.amplified_renyi(orders)


@dataclass(frozen=True, kw_only=True)
class PoissonSample(_Sampled):
    """A Gaussian over a sample in which each part is by a coin of its own, whatever it is that one unit changes."""

    multiplier: float
    sampling_rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("multiplier", self.multiplier)
        check_number("sampling_rate", self.sampling_rate, most=1.0)

    @property
    def is_silent(self) -> bool:
        return self.sampling_rate == 0

    @property
    def takes_all(self) -> bool:
        return self.sampling_rate == 1

    @property
    def likeness(self) -> tuple[float, float]:
        return self.sampling_rate, self.multiplier

    def worst_with(self, other: Event) -> Self:
        assert isinstance(other, type(self))
        rate = max(self.sampling_rate, other.sampling_rate)
        return replace(self, multiplier=min(self.multiplier, other.multiplier), sampling_rate=rate)


@dataclass(frozen=True, kw_only=True)
class PoissonGaussian(PoissonSample):
    """A Gaussian over a Poisson sample: of a client's examples, or of the clients at a trusted aggregate.

    multiplier: std / sensitivity to one unit that *is* in the sample. The sample must come from randomness
    that the observer cannot know. Replace-one is refused: no sound analysis of it is implemented.
    """

    mechanism = "poisson_gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threat.adjacency == "replace-one":
            raise ValueError("a Poisson sample is accounted under add-or-remove-one or zero-out, not replace-one")
        check_amplifies(self)

    def amplified_renyi(self, orders: Vector) -> Vector:
        from fedpriv.privacy.dp_library import poisson_gaussian_rdp  # seconds to import

        return poisson_gaussian_rdp(self.sampling_rate, self.multiplier, orders)

    def loss_distribution(self, interval: float) -> Any:
        from fedpriv.privacy.dp_library import poisson_gaussian_pld  # seconds to import

        return poisson_gaussian_pld(self.sampling_rate, self.multiplier, interval)


@dataclass(frozen=True, kw_only=True)
class FixedSizeGaussian(_Sampled):
    """A Gaussian over ``sample_size`` of ``population`` units drawn without replacement.

    multiplier: std / sensitivity to replacing one unit that is in the sample (of a clipped sum: 2C).
    """

    mechanism = "fixed_size_gaussian"
    multiplier: float
    sample_size: int
    population: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("multiplier", self.multiplier)
        check_whole("population", self.population, least=1)
        check_whole("sample_size", self.sample_size, least=0, most=self.population)
        if self.threat.adjacency != "replace-one":
            raise ValueError(f"a sample of fixed size is accounted under replace-one, not {self.threat.adjacency}")
        check_amplifies(self)

    @property
    def is_silent(self) -> bool:
        return self.sample_size == 0

    @property
    def takes_all(self) -> bool:
        return self.sample_size == self.population

    def amplified_renyi(self, orders: Vector) -> Vector:
        from fedpriv.privacy.dp_library import fixed_size_gaussian_rdp  # seconds to import

        return fixed_size_gaussian_rdp(self.sample_size, self.population, self.multiplier, orders)
