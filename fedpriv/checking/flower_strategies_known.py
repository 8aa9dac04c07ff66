"""Flower's own private strategies: what they claim, and what one round costs as it really runs.

Throughout, C is the clip norm, n the number of clients that the wrapper expects (``num_sampled_clients``), m the number
of replies, z the noise multiplier. Unit client, adjacency zero-out (the client takes part and has nothing to say), the
observer sees models and broadcasts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import flwr.clientapp.mod as mods
import flwr.server.strategy as older
import flwr.serverapp.strategy as newer

from fedpriv.checking.findings import Finding
from fedpriv.checking.flower_old_clients import dpfedavg_client, older_mod
from fedpriv.checking.subject import Question, Recognised
from fedpriv.privacy.events import ApproximateDP, Gaussian, Threat
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

TRUSTED = Threat("client", "zero-out", "trusted-server")

SERVER_FIXED = (newer.DifferentialPrivacyServerSideFixedClipping, older.DifferentialPrivacyServerSideFixedClipping)
CLIENT_FIXED = (newer.DifferentialPrivacyClientSideFixedClipping, older.DifferentialPrivacyClientSideFixedClipping)
SERVER_ADAPTIVE = (
    newer.DifferentialPrivacyServerSideAdaptiveClipping,
    older.DifferentialPrivacyServerSideAdaptiveClipping,
)
CLIENT_ADAPTIVE = (
    newer.DifferentialPrivacyClientSideAdaptiveClipping,
    older.DifferentialPrivacyClientSideAdaptiveClipping,
)
FIXED, ADAPTIVE = SERVER_FIXED + CLIENT_FIXED, SERVER_ADAPTIVE + CLIENT_ADAPTIVE
#: The part of delta that pays for a clip norm that falls further than the bound allows for.
TAIL = 0.01


def inner(strategy: Any) -> Any | None:
    """The strategy that a wrapper wraps."""
    found = getattr(strategy, "strategy", None)
    return found if isinstance(found, newer.Strategy | older.Strategy) else None


def client_mods(strategy: Any) -> list[Any]:
    """What a wrapper's documentation puts at the clients."""
    new = isinstance(strategy, newer.Strategy)
    if isinstance(strategy, CLIENT_FIXED):
        return [mods.fixedclipping_mod if new else older_mod("fixed")]
    if isinstance(strategy, CLIENT_ADAPTIVE):
        return [mods.adaptiveclipping_mod if new else older_mod("adaptive")]
    return [dpfedavg_client] if isinstance(strategy, older.DPFedAvgFixed) else []


def known_strategy(strategy: Any, question: Question) -> list[Recognised]:
    """Nothing for a strategy of unknown make, and for a subclass that aggregates its own way."""
    kinds = [kind for kind in (*FIXED, *ADAPTIVE, older.DPFedAvgFixed) if isinstance(strategy, kind)]
    if not kinds or not _aggregates_like(strategy, (*kinds, older.DPFedAvgAdaptive)):
        return []
    if isinstance(strategy, FIXED):
        found = _fixed(strategy, question)
    elif isinstance(strategy, ADAPTIVE):
        found = _adaptive(strategy, question)
    else:
        found = _dpfedavg(strategy, question)
    unknown = _unknown_mean(strategy)
    if unknown is not None:
        finding = _finding("noise-after-another-aggregate", "fault", unknown, "Wrap a strategy that takes the mean.")
        return [
            Recognised(found.words, None, unknown, found.claimed, found.delta, found.scope, found.calls, (finding,))
        ]
    return [found]


def _aggregates_like(strategy: Any, kinds: Sequence[Any]) -> bool:
    name = "aggregate_train" if isinstance(strategy, newer.Strategy) else "aggregate_fit"
    return any(getattr(type(strategy), name) is getattr(kind, name, None) for kind in kinds)


def _unknown_mean(strategy: Any) -> str | None:
    """Why the sensitivity is not that of a mean: the wrapper adds its noise to whatever the inner strategy returns."""
    found = inner(strategy)
    if isinstance(found, newer.FedAvg) and type(found).aggregate_train is newer.FedAvg.aggregate_train:
        return None
    if isinstance(found, older.FedAvg) and type(found).aggregate_fit is older.FedAvg.aggregate_fit:
        return None
    return (
        "the noise is for a mean of clipped updates, and is added to what the strategy inside returns, which is no "
        "such mean: one client's share of it has no known bound"
    )


# --- fixed norm ----------------------------------------------------------------------------------------------


def _fixed(strategy: Any, question: Question) -> Recognised:
    """Proof: with m = n replies of equal weight, one client's clipped update moves the mean by at most C / n in L2
    norm; noise of standard deviation z C / n on every number is a Gaussian mechanism of multiplier z.
    """
    z, clip, n = float(strategy.noise_multiplier), float(strategy.clipping_norm), int(strategy.num_sampled_clients)
    where = "at the server" if isinstance(strategy, SERVER_FIXED) else "at the clients, by a mod that is trusted"
    words = (
        f"central noise: updates clipped to {clip:g} {where}; noise {z:g} x {clip:g} / {n} on the mean of {n} replies"
    )
    accountant = getattr(strategy, "accountant", None)
    findings = [] if accountant is not None else [_fewer_replies(strategy, z, n)]
    if z == 0:
        return Recognised(words, None, "no noise is added", findings=findings)
    event = Gaussian(threat=TRUSTED, multiplier=z)
    if _removed(question):
        event = Gaussian(threat=replace(TRUSTED, adjacency="add-or-remove-one"), multiplier=z / 2)
        words += "; a reply more or less moves the mean by twice a clipped update, with the divisor"
    if accountant is None:
        return Recognised(words + ", if all weigh the same", event, findings=findings)
    return _accounted(words, event, z, accountant, n, question, findings)


def _removed(question: Question) -> bool:
    """Whether the claim is about a client that replies or does not."""
    return question.claim is not None and question.claim.adjacency == "add-or-remove-one"


def _by_replies(words: str, what: str, findings: Sequence[Finding]) -> Recognised:
    """Noise whose scale follows the number of replies, against a claim about one reply more: nothing is proved."""
    text = (
        f"The noise of {what} is divided by the number of replies, so that its scale tells that one came more: no "
        "bound is known for a claim about one client more or less. It is replayed and sampled."
    )
    told = _finding("noise-by-replies", "doubt", text, "Divide sum and noise by a constant, the expected number.")
    return Recognised(words, None, findings=[*findings, told])


def _fewer_replies(strategy: Any, z: float, n: int) -> Finding:
    least = next(
        (number for name in ("min_train_nodes", "min_fit_clients") if (number := getattr(inner(strategy), name, None))),
        1,
    )
    return _finding(
        "divided-by-replies",
        "doubt",
        f"The mean is over the replies that come, the noise is for {n}: with m replies its multiplier is {z:g} m / "
        f"{n}, {z * min(int(least), n) / n:.3g} at the {least} that the strategy inside accepts. Only a warning is "
        f"logged.",
        "Accept rounds of the expected size alone, or divide the sum by that size.",
    )


def _accounted(
    words: str, event: Gaussian, z: float, accountant: Any, n: int, question: Question, findings: list[Finding]
) -> Recognised:
    """The claim of Flower's own accountant: of a run that ends at its `max_epsilon`, of `Question.calls`, or a "
    "round."""
    config = accountant.config
    delta = float(config.target_delta)
    rounds = question.calls
    claimed = None
    if config.max_epsilon is not None:
        allowed = _rounds_within(accountant, z, n, float(config.max_epsilon))
        if rounds is None or allowed < rounds:
            rounds, claimed = allowed, float(config.max_epsilon)
    if claimed is None:
        claimed = _accounts(accountant, z, n, rounds or 1)
    relation, sampling = config.neighboring_relation.value, config.sampling_method.value
    per_round = gaussian_epsilon(2 / z, delta)
    findings.append(
        _finding(
            "cohort-of-fixed-size",
            "doubt",
            f"Accounted as {relation} with {sampling}; a round has {n} of {config.population_size} clients, always "
            f"as many. That a client takes part and has nothing to say is what the account covers. Where a client "
            f"who leaves makes room for another, the mean moves by 2 C / {n}: without amplification a round costs "
            f"epsilon {per_round:.4g} at delta {delta:g}.",
            "State the relation as zero-out, or double the noise.",
        )
    )
    findings.append(
        _finding("metrics-not-accounted", "note", "The accountant counts the model alone, as its documentation says.")
    )
    return Recognised(
        words + f"; accounted for {rounds or 1} rounds by the strategy's own accountant",
        event,
        claimed=claimed,
        delta=delta,
        scope="call" if rounds is None else "run",
        calls=rounds,
        findings=findings,
    )


def _accounts(accountant: Any, multiplier: float, n: int, rounds: int) -> float:
    """epsilon that a new accountant like this one gives for so many rounds."""
    return float(_composed(accountant, multiplier, n, rounds).get_epsilon(accountant.config.target_delta))


def _composed(accountant: Any, multiplier: float, n: int, rounds: int) -> Any:
    from flwr.serverapp import GaussianPrivacyEvent

    orders = accountant.state_dict().get("orders")
    found = type(accountant)(accountant.config, tuple(orders) if orders else None)
    if rounds:
        found.compose(GaussianPrivacyEvent(multiplier, n, accountant.config.population_size), rounds)
    return found


def _rounds_within(accountant: Any, multiplier: float, n: int, limit: float, most: int = 10**6) -> int:
    """Rounds that an accountant admits before it stops the run."""
    low, high = 0, 1
    while high < most and _accounts(accountant, multiplier, n, high) <= limit:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _accounts(accountant, multiplier, n, middle) <= limit else (low, middle)
    return low


# --- adaptive norm -------------------------------------------------------------------------------------------


def adaptive_epsilon(strategy: Any, delta: float) -> float:
    """epsilon of one round of an adaptive wrapper, whose noise is for the norm that the round has just set.

    The noisy share f of clipped clients is (count + N(0, s^2)) / n, where one client moves the count by at most 1; the
    new norm is C' = C exp(-r (f - q)); the mean of updates clipped to C gets noise z C' / n. Proof: given f, the mean
    is a Gaussian mechanism of mu = C / (z C') = exp(r (f - q)) / z. f exceeds F = 1 + t s / n with a probability of at
    most Phi(-t), whatever the data; let a round whose f does be a failure, paid for by that much delta. In all others
    mu <= exp(r (F - q)) / z, and adaptive composition with the count (mu = 1 / s) gives
    mu^2 = (exp(r (F - q)) / z)^2 + 1 / s^2 at the remaining delta.
    """
    z, deviation, n = (
        float(strategy.noise_multiplier),
        float(strategy.clipped_count_stddev),
        strategy.num_sampled_clients,
    )
    if z == 0 or deviation == 0:
        return math.inf
    tail = -NormalDist().inv_cdf(TAIL * delta) * deviation / n
    least = math.exp(strategy.clip_norm_lr * (1 + tail - strategy.target_clipped_quantile))
    return gaussian_epsilon(math.hypot(least / z, 1 / deviation), (1 - TAIL) * delta)


def _adaptive(strategy: Any, question: Question) -> Recognised:
    z, deviation, n = (
        float(strategy.noise_multiplier),
        float(strategy.clipped_count_stddev),
        strategy.num_sampled_clients,
    )
    where = "at the server" if isinstance(strategy, SERVER_ADAPTIVE) else "at the clients, by a mod that is trusted"
    words = (
        f"central noise, adaptive norm: updates clipped {where}; noise {z:.4g} x norm / {n} on the mean, "
        f"{deviation:g} on the count of clipped clients"
    )
    findings = [*_of_adaptive_norm(strategy, z, deviation), _fewer_replies(strategy, z, n)]
    if z == 0 or deviation == 0:
        return Recognised(words, None, "no noise is added to the model or to the count", findings=findings)
    if _shows_exact_share(strategy):
        reason = "the round's metrics hold the exact share of clipped clients, beside the norm that has noise"
        remedy = "Take the bit out of the metrics: train_metrics_aggr_fn of the strategy inside."
        findings.append(_finding("exact-share-in-metrics", "fault", reason.capitalize() + ".", remedy))
        return Recognised(words, None, reason, findings=findings)
    if _removed(question):
        return _by_replies(words, "the share of clipped clients", findings)
    delta = question.at_delta / (question.calls or 1)
    return Recognised(
        words, ApproximateDP(threat=TRUSTED, epsilon=adaptive_epsilon(strategy, delta), delta=delta), findings=findings
    )


def _shows_exact_share(strategy: Any) -> bool:
    """Clients send the bit as a metric, and Flower's own function for metrics takes the mean of all of them."""
    from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

    is_new = isinstance(strategy, newer.DifferentialPrivacyClientSideAdaptiveClipping)
    return is_new and getattr(inner(strategy), "train_metrics_aggr_fn", None) is aggregate_metricrecords


def _of_adaptive_norm(strategy: Any, z: float, deviation: float) -> Iterator[Finding]:
    if z == 0 or deviation == 0:
        return
    given = (z**-2 + (2 * deviation) ** -2) ** -0.5
    if isinstance(strategy, ADAPTIVE):
        least = math.exp(-strategy.clip_norm_lr * (1 - strategy.target_clipped_quantile))
        yield _finding(
            "noise-of-the-next-norm",
            "doubt",
            f"Updates are clipped to the norm of this round, and the noise is for that of the next. When all are "
            f"clipped the next is {least:.3g} of it, and the model's multiplier {z * least:.4g}, not {z:.4g}.",
            "Add the noise of the norm that clipped the updates (Andrew et al. 2021, Algorithm 1).",
        )
        yield _finding(
            "norm-moves-away",
            "note",
            "The norm falls when more updates are clipped than the target and grows when fewer are: it moves away from "
            "the quantile. In Andrew et al. 2021, Algorithm 1, the bit is set for updates that are not clipped.",
        )
    yield _finding(
        "count-of-whole-bits",
        "doubt",
        f"The count's noise {deviation:g} is taken for a bit that moves it by 1/2. A client who has nothing to say "
        f"moves it by 1: a round's multiplier is {(z**-2 + deviation**-2) ** -0.5:.4g}, not {given:.4g}.",
        "Count each bit less one half, or double the count's noise.",
    )


# --- DPFedAvg ------------------------------------------------------------------------------------------------


def _dpfedavg(strategy: Any, question: Question) -> Recognised:
    """Noise z C / sqrt(n) on each of m replies of equal weight. Proof: the mean's noise has standard deviation
    z C / sqrt(n m), one clipped update moves it by C / m: multiplier z sqrt(m / n), z where all n reply. Of the
    adaptive kind the norm that clipped is the one that the noise is for; the count of unclipped updates has noise s,
    and one client moves it by at most 1: mu^2 = 1 / z^2 + 1 / s^2.
    """
    z, clip, n = float(strategy.noise_multiplier), float(strategy.clip_norm), int(strategy.num_sampled_clients)
    words = (
        f"central noise by reply: updates clipped to {clip:g} at the clients; noise {z:.4g} x {clip:g} / sqrt({n}) on "
        "each"
    )
    findings: list[Finding] = []
    squares = 0.0
    if isinstance(strategy, older.DPFedAvgAdaptive):
        deviation = float(strategy.clip_count_stddev)
        words += f"; {deviation:g} on the count of unclipped clients"
        findings += _of_adaptive_norm(strategy, z, deviation)
        squares = math.inf if deviation == 0 else deviation**-2
    if z == 0 or math.isinf(squares):
        return Recognised(words, None, "no noise is added to the model or to the count", findings=findings)
    if _removed(question):
        return _by_replies(words, "the model", findings)
    return Recognised(words, Gaussian(threat=TRUSTED, multiplier=(z**-2 + squares) ** -0.5), findings=findings)


def _finding(name: str, severity: Any, text: str, remedy: str = "") -> Finding:
    return Finding("recognised", name, severity, text, remedy)
