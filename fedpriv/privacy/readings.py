"""Which readings of a paper's setting give the epsilon that it prints.

A reading is an accountant, a sampling rate, a number of compositions and a ratio: noise multiplier = ratio * sigma. A
printed epsilon is a rounded one, so it allows an interval of ratios; several printed ones, each with its own sigma and
rounds, allow what their intervals share. A ratio that the setting explains (1, 2, the batch, the cohort) is named.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from scipy.optimize import brentq

from fedpriv.common.errors import OptionError
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

#: Multipliers that are tried: beyond these an epsilon is no paper's.
SMALLEST, LARGEST = 1e-2, 1e4
#: The composition of all that an example's client computes.
STEPS = "every local step of all rounds"


@dataclass(frozen=True)
class Setting:
    """What stands beside one printed epsilon.

    epsilon: as it is printed, with its digits. sigma: the paper's noise; None: not printed. batch of n examples of a
    client, epochs of them in a round; cohort: clients in a round, of all clients. None: not said.
    """

    epsilon: str
    rounds: int
    delta: float
    sigma: float | None = None
    batch: int | None = None
    n: int | None = None
    cohort: int | None = None
    clients: int | None = None
    epochs: int = 1

    @property
    def interval(self) -> tuple[float, float]:
        """Epsilons that are printed so: half a unit of the last digit to either side."""
        value = Decimal(self.epsilon)
        half = Decimal(5).scaleb(int(value.as_tuple().exponent) - 1)
        return float(value - half), float(value + half)

    def is_printed(self, epsilon: float) -> bool:
        """Whether an epsilon is printed so."""
        least, most = self.interval
        return least <= epsilon <= most

    @property
    def rates(self) -> dict[str, float]:
        """Sampling rates by their words; 1: nothing is amplified."""
        found = {"no sampling": 1.0}
        if self.batch and self.n:
            found["Poisson batches"] = self.batch / self.n
        if self.cohort and self.clients:
            found["Poisson cohorts"] = self.cohort / self.clients
        if len(found) == 3:
            found["Poisson batches of Poisson cohorts"] = math.prod(found.values())
        return found

    @property
    def counts(self) -> dict[str, int]:
        """Compositions by their words."""
        found = {"once": 1, "every round": self.rounds}
        if self.batch and self.n:
            found[STEPS] = self.steps * self.rounds
        if self.cohort and self.clients:
            part = max(1, round(self.rounds * self.cohort / self.clients))
            found["every round in which a client takes part"] = part
            if self.batch and self.n:
                found["every local step in which a client takes part"] = self.steps * part
        return found

    @property
    def ratios(self) -> dict[str, float]:
        """Ratios that the setting explains; none where sigma is not printed."""
        if self.sigma is None:
            return {}
        found = {"sigma": 1.0, "2 sigma": 2.0, "sigma / 2 (an update replaced, 2C apart)": 0.5}
        numbers = {"batch": self.batch, "cohort": self.cohort, "local steps": self.steps, "clients": self.clients}
        for words, number in numbers.items():
            if number and number > 1:
                found |= {f"{words} x sigma": float(number), f"sqrt({words}) x sigma": math.sqrt(number)}
                found |= {f"sigma / {words}": 1 / number, f"sigma / sqrt({words})": 1 / math.sqrt(number)}
        return found

    @property
    def steps(self) -> int:
        """Local steps of a client in a round; 1 where batches are not said."""
        return self.epochs * math.ceil(self.n / self.batch) if self.batch and self.n else 1


#: (multiplier, rate, count, delta) -> epsilon of so many Gaussians of noise multiplier * sensitivity.
Accountant = Callable[[float, float, int, float], float]


def opacus_renyi(multiplier: float, rate: float, count: int, delta: float) -> float:
    """`RDPAccountant.get_epsilon`, of the orders that are near the best whole one: the others give no less."""
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent

    def spent(orders: Sequence[float]) -> tuple[float, float]:
        divergences = compute_rdp(q=rate, noise_multiplier=multiplier, steps=count, orders=orders)
        with warnings.catch_warnings():  # of orders that end too early: this is what its user got
            warnings.simplefilter("ignore", UserWarning)
            epsilon, order = get_privacy_spent(orders=orders, rdp=divergences, delta=delta)
        return float(epsilon), float(order)

    whole = [order for order in RDPAccountant.DEFAULT_ALPHAS if order == int(order)]
    best, order = spent(whole)
    near = [one for one in RDPAccountant.DEFAULT_ALPHAS if abs(one - order) <= 1 and one not in whole]
    return min(best, spent(near)[0]) if near else best


def moments(multiplier: float, rate: float, count: int, delta: float) -> float:
    """M. Abadi et al. 2016: moments at whole orders up to 64, and the conversion ln(1/delta)/(a - 1)."""
    from opacus.accountants.analysis.rdp import compute_rdp

    orders = list(range(2, 65))
    spent = compute_rdp(q=rate, noise_multiplier=multiplier, steps=count, orders=orders)
    return float(min(one + math.log(1 / delta) / (order - 1) for one, order in zip(spent, orders, strict=True)))


def exact(multiplier: float, rate: float, count: int, delta: float) -> float:
    """B. Balle, Y.-X. Wang 2018, Theorem 8; of nothing that is sampled."""
    return gaussian_epsilon(math.sqrt(count) / multiplier, delta) if rate == 1 else math.nan


def classical(multiplier: float, rate: float, count: int, delta: float) -> float:
    """The sum of sqrt(2 ln(1.25/delta))/multiplier of each release; of a sampled one ln(1 + q(e^eps - 1))."""
    one = math.sqrt(2 * math.log(1.25 / delta)) / multiplier
    return count * (math.log1p(rate * math.expm1(min(one, 700.0))) if rate < 1 else one)


def classical_root(multiplier: float, rate: float, count: int, delta: float) -> float:
    """The classical Gaussian's with the root of the number of releases, and the rate as a factor."""
    return rate * math.sqrt(2 * count * math.log(1.25 / delta)) / multiplier


def advanced(multiplier: float, rate: float, count: int, delta: float) -> float:
    """Advanced composition (C. Dwork, A. Roth 2014, Theorem 3.20) of classical Gaussians; half of delta for each."""
    one = classical(multiplier, rate, 1, delta / 2 / count)
    return math.sqrt(2 * count * math.log(2 / delta)) * one + count * one * math.expm1(min(one, 700.0))


def concentrated(multiplier: float, rate: float, count: int, delta: float) -> float:
    """M. Bun, T. Steinke 2016: rho + 2 sqrt(rho ln(1/delta)); of nothing that is sampled."""
    rho = count / (2 * multiplier**2)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta)) if rate == 1 else math.nan


ACCOUNTANTS: Mapping[str, Accountant] = {
    "Opacus' RDP accountant": opacus_renyi,
    "moments accountant of Abadi et al.": moments,
    "exact (Balle and Wang)": exact,
    "classical Gaussian, epsilons added": classical,
    "classical Gaussian, root of the number": classical_root,
    "advanced composition": advanced,
    "zCDP": concentrated,
}


@dataclass(frozen=True)
class Reading:
    """ratios: what the printed epsilons allow together; None where one has another than the next, as "batch x sigma" of
    two batches. ratio: the (first) one that the setting explains, in words in ``named``; else, with "", the one of the
    fewest digits. epsilons: by this reading with this ratio.
    """

    accountant: str
    sampling: str
    composed: str
    ratios: tuple[float, float] | None
    ratio: float
    named: str
    epsilons: tuple[float, ...]


def readings(settings: Sequence[Setting]) -> list[Reading]:
    """All that give every printed epsilon at once; those with a ratio that the setting explains come first."""
    found = list(_fitting(settings))
    return sorted(found, key=lambda one: (not one.named, len(f"{one.ratio:.10g}".strip("0."))))


def simplest(low: float, high: float) -> float:
    """The number of the fewest digits between two positive ones."""
    for digits in range(1, 17):
        unit = Decimal(1).scaleb(Decimal(high).adjusted() + 1 - digits)
        rounded = (Decimal(low) / unit).to_integral_value(ROUND_CEILING) * unit
        if Decimal(low) <= rounded <= Decimal(high):
            return float(rounded)
    return high


def _fitting(settings: Sequence[Setting]) -> Iterator[Reading]:
    first = settings[0]
    pairs: dict[tuple[tuple[float, int], ...], tuple[str, str]] = {}  # of equal ones the first
    for sampling, composed in itertools.product(first.rates, first.counts):
        if _sensible(sampling, composed):
            pairs.setdefault(
                tuple((one.rates[sampling], one.counts[composed]) for one in settings), (sampling, composed)
            )
    for (name, accountant), (sampling, composed) in itertools.product(ACCOUNTANTS.items(), pairs.values()):

        def epsilon(one: Setting, ratio: float) -> float:
            multiplier = ratio * (one.sigma or 1.0)
            return accountant(multiplier, one.rates[sampling], one.counts[composed], one.delta)  # noqa: B023

        def explained(words: str) -> bool:
            for one in settings:
                ratio = one.ratios.get(words, math.nan)
                tried = SMALLEST <= ratio * (one.sigma or 1.0) <= LARGEST
                if not (tried and one.is_printed(epsilon(one, ratio))):
                    return False
            return True

        allowed = _ratios(settings, epsilon)
        named = [words for words in first.ratios if explained(words)]
        if named:
            ratios = [one.ratios[named[0]] for one in settings]
        elif allowed is not None:
            ratios = [simplest(*allowed)] * len(settings)
        else:
            continue
        given = tuple(map(epsilon, settings, ratios))
        yield Reading(name, sampling, composed, allowed, ratios[0], " or ".join(named), given)


def _sensible(sampling: str, composed: str) -> bool:
    """A sampled cohort is drawn once a round; who takes part is known where it is no secret."""
    return "cohorts" not in sampling or ("takes part" not in composed and (composed != STEPS or "batches" in sampling))


def _ratios(settings: Sequence[Setting], epsilon: Callable[[Setting, float], float]) -> tuple[float, float] | None:
    """Ratios (multipliers where sigma is not printed) that give every printed epsilon; None: there are none."""
    sigmas = [one.sigma or 1.0 for one in settings]
    low, high = SMALLEST / min(sigmas), LARGEST / max(sigmas)
    for one in settings:
        least, most = one.interval
        if not (low <= high and epsilon(one, low) >= least and epsilon(one, high) <= most):  # falls as the ratio grows
            return None
        ends = (
            _where(one, epsilon, most, low, high) if epsilon(one, low) > most else low,
            _where(one, epsilon, least, low, high) if epsilon(one, high) < least else high,
        )
        low, high = min(ends), max(ends)  # of many digits both are one number, up to the last bits
    return low, high


def _where(one: Setting, epsilon: Callable[[Setting, float], float], wanted: float, low: float, high: float) -> float:
    def above(logarithm: float) -> float:
        return epsilon(one, math.exp(logarithm)) - wanted

    return math.exp(brentq(above, math.log(low), math.log(high), xtol=1e-12))


def settings_of(epsilons: Sequence[str], given: Mapping[str, Sequence[float]]) -> list[Setting]:
    """One for each printed epsilon; an option with one value holds for all. Raises `OptionError`."""
    rows = []
    for number, printed in enumerate(epsilons):
        row = {}
        for name, values in given.items():
            if len(values) not in (1, len(epsilons)):
                several = f", or {len(epsilons)}: one for each epsilon" if len(epsilons) > 1 else ": epsilon is one"
                raise OptionError(name, ",".join(f"{value:g}" for value in values), f"must be one value{several}")
            row[name] = values[number if len(values) > 1 else 0]
        for part, whole in (("batch", "n"), ("cohort", "clients")):
            if row.get(part, 0) > row.get(whole, math.inf):
                raise OptionError(part, row[part], f"is more than {whole}={row[whole]}")
        rows.append(Setting(printed, **row))  # type: ignore[arg-type]
    return rows
