"""How often the 95 % intervals of regressions and of survival hold: the tables in docs/statistics.md.

    python -m tools.inference_figure [draws=1000] [only=linear|links|survival|groups|score] [seed=0]

y = 0.1 + 0.3 a - 0.2 b + 0.1 g + an error of standard deviation 0.15, in units of half of a range; a and b are
correlated by 0.5 (uniform: on the whole range; normal: of standard deviation a third of half of it), g is a category of
30 % of the rows. Rows are drawn anew each time. Noise is that of a Gaussian at delta 1e-4, of one (secure sum) or of
five (each site its own). A coefficient that the answer leaves out counts for nothing; the truth is then that of the
columns that stay.

Links: of the uniform table yes or no by the logistic probability of -1 + 1.5 a - b + 0.5 g, and counts up to 8 of mean
exp(0.5 + 0.8 a - 0.5 b + 0.3 g), in two rounds; the truth is that of the model without the columns that left it.
Hazards: times of constant hazards exp(-0.4 + 0.8 a - 0.5 b + 0.5 g) up to 1, censored evenly between 0.2 and 1.6, in
three intervals; shown are a, b and g.

Groups: of the uniform table's rows five groups by chance, of which the last may have another slope of a; how often Q of
a is beyond 95 % of chi-squared of four degrees, where all are equal and where that slope is 0.3 more.

Survival: times of a Weibull law of shape 1.3 and scale 6.5 years, censored evenly between 1 and 7.5 years, as those of
breast cancer in the GBSG2 trial about are; of 40 % of the rows, the second group, the hazard is once or twice as large.
The figures are of 24 intervals up to 6 years.

Score: a model of two classes whose logit is normal of standard deviation 1.2 and true for a slope of 0.7, 40 % of the
rows positive; and predictions of a number in 0 to 100, normal about 48, with errors of standard deviation 8. Errors are
those to the same figure of these rows without noise, as scikit-learn has it.
"""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace
from functools import cache, partial

import numpy as np
from scipy import special, stats

from fedpriv.common.command_line import command
from fedpriv.data.regressions import CRITICAL, Column, Groups, Hazards, Link, Moments, Z
from fedpriv.data.scores import Counts, Residuals, Scores
from fedpriv.data.survival import Curve, LifeTable, log_rank
from fedpriv.privacy.gaussian_dp import gaussian_mu

TRUTH = np.array([0.1, 0.3, -0.2, 0.1])
CORRELATION = np.array([[1, 0.5, 0.3], [0.5, 1, 0.2], [0.3, 0.2, 1]])
MOMENTS = Moments((Column("a"), Column("b"), Column("g", values=("f", "m")), Column("y")))
TABLES, SIZES, EPSILONS, DELTA = ("uniform", "normal"), (500, 3000), (1.0, 4.0), 1e-4
#: Trust model -> noises in the sum.
MODELS = {"secure sum": 1, "own noise": 5}


def table(rows: int, rng: np.random.Generator, name: str = "uniform") -> list[np.ndarray]:
    """Columns a, b, g, y as a schema scales them."""
    given = rng.normal(size=(rows, 3)) @ np.linalg.cholesky(CORRELATION).T
    a, b = (2 * stats.norm.cdf(given[:, :2]) - 1 if name == "uniform" else (given[:, :2] / 3).clip(-1, 1)).T
    g = (given[:, 2] > 0.5).astype(np.int64)
    return [a, b, g, TRUTH @ np.stack([np.ones(rows), a, b, g]) + 0.15 * rng.normal(size=rows)]


def trials(
    name: str, rows: int, epsilon: float, noises: int, draws: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each coefficient [4]: (how often the interval held, how often that of the sums taken for exact, how often it
    was answered).
    """
    std, rng = math.sqrt(noises) / gaussian_mu(epsilon, DELTA), np.random.default_rng(seed)
    big = MOMENTS.fit(MOMENTS.vectors(table(300_000, np.random.default_rng(seed + 1), name)).sum(axis=0), 0.0)
    held, naive = np.full((draws, 4), np.nan), np.zeros((draws, 4))
    for draw in range(draws):
        total = MOMENTS.vectors(table(rows, rng, name)).sum(axis=0)
        total += rng.normal(0, std, len(total))
        exact, whole = MOMENTS.fit(total, 0.0), MOMENTS.fit(total, std)
        naive[draw] = np.abs(exact.coefficients - TRUTH) <= Z * np.sqrt(np.diag(exact.errors))
        kept = whole.identified()
        fit, true = whole.only(kept), TRUTH if len(kept) == 4 else big.only(kept).coefficients
        for row, value, place in zip(np.eye(len(kept)), true, kept, strict=True):
            held[draw, place] = fit.statistic(row, value) <= CRITICAL
    return np.nanmean(held, axis=0), naive.mean(axis=0), np.isfinite(held).mean(axis=0)


# --- yes and no, counts ------------------------------------------------------------------------------------

YES = Moments((*MOMENTS.columns[:-1], Column("y", 0.5, 0.5)), Link("logistic"))
COUNTS = Moments((*MOMENTS.columns[:-1], Column("y", 4.0, 4.0)), Link("poisson", 8.0))
_ENDS = ("first", "second", "third")
_TIMES = Hazards((Column("t", values=_ENDS), *MOMENTS.columns[:-1], Column("e", 0.5, 0.5)), Link("hazards"))
TIMES = replace(_TIMES, theta=np.zeros(len(_TIMES.names)))
LINKS: dict[str, tuple[Moments, np.ndarray]] = {
    "logistic": (YES, np.array([-1.0, 1.5, -1.0, 0.5])),
    "poisson": (COUNTS, np.array([0.5, 0.8, -0.5, 0.3])),
    "hazards": (TIMES, np.array([-0.4, 0.0, 0.0, 0.8, -0.5, 0.5])),
}


def linked(name: str, rows: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Columns a, b, g, y as a schema scales them; of hazards times, a, b, g, events."""
    a, b, g, _ = table(rows, rng)
    eta = LINKS[name][1][[0, -3, -2, -1]] @ np.stack([np.ones(rows), a, b, g])
    if name == "hazards":
        event, last = rng.exponential(np.exp(-eta)), rng.uniform(0.2, 1.6, rows).clip(max=1.0)
        return [np.minimum(event, last), a, b, g, (event < last).astype(float)]
    if name == "logistic":
        return [a, b, g, 2.0 * (rng.random(rows) < special.expit(eta)) - 1]
    return [a, b, g, rng.poisson(np.exp(eta)).clip(0, 8) / 4 - 1]


@cache
def true_of(name: str, left: tuple[int, ...]) -> np.ndarray:
    """Coefficients of the law without these."""
    moments, true = LINKS[name]
    theta, kept = true.copy(), [place for place in range(len(true)) if place not in left]
    theta[list(left)] = 0.0
    columns = linked(name, 200_000, np.random.default_rng(1)) if left else []
    for _ in range(10 if left else 0):
        moments = replace(moments, theta=theta.copy())
        fit = moments.fit(moments.vectors(columns).sum(axis=0), 0.0).only(kept)
        theta[kept] += fit.coefficients / moments.near()[0]
    return theta


def link_trials(
    name: str, rows: int, epsilon: float, noises: int, draws: int, rounds: int = 2, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each coefficient, of hazards with those of the intervals: (how often the interval held, how often where no
    remark says that it need not (`Moments.far`), how often it was answered).
    """
    std, rng, held = math.sqrt(noises * rounds) / gaussian_mu(epsilon, DELTA), np.random.default_rng(seed), []
    near = []
    for _ in range(draws):
        moments, columns = LINKS[name][0], linked(name, rows, rng)
        for number in range(rounds):
            total = moments.vectors(columns).sum(axis=0)
            total += rng.normal(0, std, len(total))
            moments = moments if number == rounds - 1 else moments.zoomed(total, std)
        fit, kept = moments.told(total, std)
        assert moments.link is not None and moments.theta is not None
        left = tuple(place for place in np.flatnonzero(moments.theta == 0) if place not in kept)
        true = true_of(name, left)
        moved = (true - moments.theta) * moments.near()[0]
        one = np.full(len(true), np.nan)
        one[kept] = [fit.statistic(row, moved[k]) <= CRITICAL for row, k in zip(np.eye(len(kept)), kept, strict=True)]
        held.append(one)
        near.append(not moments.far(fit, kept))
    found = np.array(held)
    return np.nanmean(found, axis=0), np.nanmean(found[near], axis=0), np.isfinite(found).mean(axis=0)


def link_rows(draws: int, seed: int = 0) -> None:
    print("| regression | rows | epsilon | noise | held | without a remark | answered |\n" + "|---" * 7 + "|")
    for name in LINKS:
        for rows in SIZES:
            for model, noises in MODELS.items():
                shares = link_trials(name, rows, 1.0, noises, draws, seed=seed)
                found = ("; ".join(f"{n:.3f}" for n in one[-3 if name == "hazards" else 0 :]) for one in shares)
                print(f"| {name} | {rows} | 1 | {model} | {' | '.join(found)} |", flush=True)


# --- survival ----------------------------------------------------------------------------------------------

ALL, ARMS = LifeTable(6.0), LifeTable(6.0, groups=("old", "new"))
SHAPE, SCALE, PATIENTS = 1.3, 6.5, (686, 3000)


def patients(rows: int, rng: np.random.Generator, ratio: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(times up to 6, 1: event, group)."""
    group = (rng.random(rows) < 0.4).astype(np.int64)
    event = SCALE * (rng.exponential(size=rows) / np.where(group == 1, ratio, 1.0)) ** (1 / SHAPE)
    censored = rng.uniform(1.0, 7.5, rows)
    return np.minimum(np.minimum(event, censored), ALL.until), (event <= censored).astype(np.int64), group


def survival(times: np.ndarray) -> np.ndarray:
    """The truth of one group."""
    return np.asarray(np.exp(-((times / SCALE) ** SHAPE)))


def curves(rows: int, epsilon: float, noises: int, draws: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Of each draw: (whether the band held [draws, K], the error [draws, K], whether something is said [draws, K], p of
    the log-rank test for equal hazards and for a ratio of two [draws, 2]).
    """
    std, rng = math.sqrt(noises) / gaussian_mu(epsilon, DELTA), np.random.default_rng(seed)
    true, held, errors, clear, tests = survival(ALL.times), [], [], [], []

    def noisy(table: LifeTable, *columns: np.ndarray) -> list[Curve]:
        total = table.vectors(*columns).sum(axis=0) + rng.normal(0, std, table.size)
        return [Curve.of(table, part, std) for part in total.reshape(-1, 2 * table.intervals + 1)]

    for _ in range(draws):
        times, events, group = patients(rows, rng)
        (curve,) = noisy(ALL, times, events)
        held.append((curve.low <= true) & (true <= curve.high))
        errors.append(np.abs(curve.values - true))
        clear.append(curve.clear)
        equal = log_rank(noisy(ARMS, times, events, group))[1]
        tests.append((equal, log_rank(noisy(ARMS, *patients(rows, rng, 2.0)))[1]))
    return np.array(held), np.array(errors), np.array(clear), np.array(tests)


def survival_rows(draws: int) -> None:
    print("| rows | epsilon | noise | band held at 1.5, 3, 4.5, 5 years | mean error there | said at 5 years |", end="")
    print(" log-rank below 0.05: equal; twice |\n|---|---|---|---|---|---|---|")
    at = [int(np.searchsorted(ALL.times, year)) for year in (1.5, 3, 4.5, 5)]
    for rows in PATIENTS:
        for epsilon in EPSILONS:
            for model, noises in MODELS.items():
                held, errors, clear, tests = (one.mean(axis=0) for one in _tests(curves(rows, epsilon, noises, draws)))
                parts = ["; ".join(f"{n:.3f}" for n in one) for one in (held[at], errors[at], clear[at[-1:]], tests)]
                print(f"| {rows} | {epsilon:g} | {model} | {' | '.join(parts)} |", flush=True)


def _tests(found: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    return (*found[:3], found[3] < 0.05)


# --- groups ------------------------------------------------------------------------------------------------

SITES = tuple("12345")


def group_trials(
    name: str, rows: int, epsilon: float, noises: int, draws: int, more: float = 0.0, seed: int = 0
) -> float:
    """How often Q of the slope of a is beyond its 95 % point. name: linear, or of `LINKS`."""
    inner, rounds = (MOMENTS, 1) if name == "linear" else (LINKS[name][0], 2)
    std, rng = math.sqrt(noises * rounds) / gaussian_mu(epsilon, DELTA), np.random.default_rng(seed)
    beyond, limit = 0, stats.chi2.isf(0.05, len(SITES) - 1)
    for _ in range(draws):
        columns = table(rows, rng) if name == "linear" else linked(name, rows, rng)
        site, groups = rng.integers(0, len(SITES), rows), Groups(inner, SITES)
        if name == "linear":
            columns[-1] = columns[-1] + more * columns[0] * (site == len(SITES) - 1)
        for number in range(rounds):
            total = groups.vectors([site, *columns]).sum(axis=0)
            total += rng.normal(0, std, len(total))
            groups = groups if number == rounds - 1 else groups.zoomed(total, std)
        beyond += groups.heterogeneity(total, std, "a") > limit
    return beyond / draws


def group_rows(draws: int, seed: int = 0) -> None:
    print("| regression | rows | epsilon | noise | refuted: equal | one slope is 0.3 more |\n|---|---|---|---|---|---|")
    for name in ("linear", *LINKS):
        for rows, epsilon in itertools.product((3000, 20_000), EPSILONS):
            for model, noises in MODELS.items():
                found = [f"{group_trials(name, rows, epsilon, noises, draws, seed=seed):.3f}"]
                other = f"{group_trials(name, rows, epsilon, noises, draws, 0.3):.3f}" if name == "linear" else ""
                print(f"| {name} | {rows} | {epsilon:g} | {model} | {found[0]} | {other} |", flush=True)


# --- a model's score ---------------------------------------------------------------------------------------

MODEL, ERRORS, TESTED = Scores(("no", "yes")), Residuals(0.0, 100.0, 50.0), (114, 569, 3276)
Drawn = tuple[np.ndarray, np.ndarray]


def risks(rows: int, rng: np.random.Generator, share: float = 0.4, slope: float = 0.7) -> Drawn:
    """(probabilities [n, 2] of a model with this calibration slope, classes [n])."""
    y = (rng.random(rows) < share).astype(np.int64)
    x = rng.normal(size=rows) + 1.2 * y
    p = special.expit((math.log(share / (1 - share)) + 1.2 * x - 0.72) / slope)
    return np.stack([1 - p, p], axis=1), y


def errors(rows: int, rng: np.random.Generator) -> Drawn:
    """(predictions, targets)."""
    f = rng.normal(size=rows)
    return 48 + 11 * f, np.clip(50 + 12 * f + 8 * rng.normal(size=rows), 0, 100)


def exactly(p: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Figures of these rows."""
    predicted, ranks, ill = p[:, 1] >= 0.5, stats.rankdata(p[:, 1]), int(y.sum())
    auc = (ranks[y == 1].sum() - ill * (ill + 1) / 2) / (ill * (len(y) - ill))
    brier = float(np.mean((p[:, 1] - y) ** 2))
    right = {"sensitivity": predicted[y == 1].mean(), "specificity": 1 - predicted[y == 0].mean()}
    return {"accuracy": (predicted == y).mean(), "AUC": auc, "Brier score": brier, "share of yes": y.mean(), **right}


@cache
def law(share: float) -> dict[str, float]:
    """Figures of the law."""
    return exactly(*risks(2_000_000, np.random.default_rng(99), share)) | {"calibration slope": 0.7}


def judged(rows: int, epsilon: float, noises: int, draws: int, share: float = 0.4) -> dict[str, tuple[float, float]]:
    """figure -> (how often its interval held, how often it was given)."""
    std, rng = math.sqrt(noises) / gaussian_mu(epsilon, DELTA), np.random.default_rng(0)
    true, held = law(share), dict[str, list[bool]]()
    for _ in range(draws):
        total = MODEL.vectors(*risks(rows, rng, share)).sum(axis=0) + rng.normal(0, std, MODEL.size)
        found = MODEL.answer(total, std)
        for name, low, high in zip(found["names"], found["low"], found["high"], strict=True):
            if name in true and (low, high) != (0.0, 1.0):
                held.setdefault(name, []).append(bool(low <= true[name] <= high))
    return {name: (float(np.mean(one)), len(one) / draws) for name, one in held.items()}


def judged_errors(rows: int, epsilon: float, noises: int, draws: int) -> dict[str, float]:
    """figure -> how often its interval held, of those that were always given."""
    std, rng = math.sqrt(noises) / gaussian_mu(epsilon, DELTA), np.random.default_rng(0)
    p, y = errors(2_000_000, np.random.default_rng(99))
    true = {"bias (target less prediction)": (y - p).mean(), "RMSE": math.sqrt(np.mean((y - p) ** 2))}
    true |= {"R squared": 1 - np.mean((y - p) ** 2) / y.var(), "rows": rows}
    held = dict[str, list[bool]]()
    for _ in range(draws):
        p, y = errors(rows, rng)
        total = ERRORS.vectors(p[:, None] / 50 - 1, y / 50 - 1).sum(axis=0) + rng.normal(0, std, ERRORS.size)
        found = ERRORS.answer(total, std)
        for name, low, high in zip(found["names"], found["low"], found["high"], strict=True):
            if name in true:
                held.setdefault(name, []).append(bool(low <= true[name] <= high))
    return {name: float(np.mean(one)) for name, one in held.items() if len(one) == draws}


def off(rows: int, epsilon: float, noises: int, draws: int) -> tuple[float, float]:
    """Mean distance of (accuracy in points, AUC) to those of the rows without noise."""
    std, rng, apart = math.sqrt(noises) / gaussian_mu(epsilon, DELTA), np.random.default_rng(0), []
    for _ in range(draws):
        p, y = risks(rows, rng)
        total = MODEL.vectors(p, y).sum(axis=0) + rng.normal(0, std, MODEL.size)
        counts, exact = Counts(MODEL.map @ total, MODEL.map * std), exactly(p, y)
        accuracy = counts.share("", MODEL.right, MODEL.cells(1, 1)).value
        apart.append((100 * (accuracy - exact["accuracy"]), MODEL.auc(counts).value - exact["AUC"]))
    points, auc = np.abs(apart).mean(axis=0)
    return float(points), float(auc)


def score_rows(draws: int) -> None:
    print(
        "| rows | epsilon | noise | error of accuracy (points), AUC | held: accuracy, AUC, Brier score, slope |\n"
        + "|---" * 5
        + "|"
    )
    for rows in TESTED:
        for epsilon in (0.5, 1.0):
            for model, noises in MODELS.items():
                points, auc = off(rows, epsilon, noises, draws)
                held = judged(rows, epsilon, noises, draws)
                told = "; ".join(
                    "–"
                    if name not in held
                    else f"{held[name][0]:.3f}" + (f" of {held[name][1]:.0%}" if held[name][1] < 1 else "")
                    for name in ("accuracy", "AUC", "Brier score", "calibration slope")
                )
                print(f"| {rows} | {epsilon:g} | {model} | {points:.2f}; {auc:.3f} | {told} |", flush=True)


@command
def main(*, draws: int = 1000, only: str = "", seed: int = 0) -> None:
    for name, print_rows in (
        ("survival", survival_rows),
        ("score", score_rows),
        ("links", partial(link_rows, seed=seed)),
        ("linear", linear_rows),
        ("groups", partial(group_rows, seed=seed)),
    ):
        if only in ("", name):
            print_rows(draws)


def linear_rows(draws: int) -> None:
    print("| table | rows | epsilon | noise | held | sums taken for exact | answered |\n|---|---|---|---|---|---|---|")
    for name in TABLES:
        for rows in SIZES:
            for epsilon in EPSILONS:
                for model, noises in MODELS.items():
                    found = ("; ".join(f"{n:.3f}" for n in one) for one in trials(name, rows, epsilon, noises, draws))
                    print(f"| {name} | {rows} | {epsilon:g} | {model} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
