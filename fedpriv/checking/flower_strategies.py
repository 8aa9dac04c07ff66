"""A strategy of either of Flower's generations, played with a cohort of clients whose first is the neighbour."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from statistics import NormalDist
from typing import Any, ClassVar
from unittest.mock import patch

import flwr.client.mod as older_mods
import flwr.clientapp.mod as mods
import flwr.server.strategy as older
import flwr.serverapp.strategy as newer
import numpy as np
from flwr.app import Message
from flwr.common import FitIns, FitRes, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.client.dpfedavg_numpy_client import DPFedAvgNumPyClient
from flwr.compat.common import recorddict_compat as compat
from flwr.serverapp import ServerApp

from fedpriv.checking.findings import Finding, Severity, finding
from fedpriv.checking.flower_apps import config_near
from fedpriv.checking.flower_cohort import Cohort, NewRounds, Nodes, OldRounds
from fedpriv.checking.flower_messages import (
    CLIENT,
    LARGE,
    LENGTHS,
    SEED,
    SMALL,
    Trained,
    context,
    extremes,
    plain,
    quiet,
    shared_modules,
    spike,
)
from fedpriv.checking.functions import NotTaken, of_ours
from fedpriv.checking.generators import seeded
from fedpriv.checking.statistics import bare_names
from fedpriv.checking.subject import (
    Numbers,
    Pair,
    Played,
    Probe,
    Question,
    Recognised,
    RoundsSubject,
    Subject,
    claim_of,
)
from fedpriv.engines.grid import RUN_ID, SERVER_NODE, empty_context, identify_server, stamp
from fedpriv.privacy.events import ApproximateDP, Gaussian, Threat
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

# --- split ------------------------------------------------------------------------------------------------------------
# Cohorts in which one client's answer may decide what becomes of the others'.
#
# A rule that looks at the raw answers of all (a median of their norms, the side of their mean, a quantile) changes
# abruptly where the others stand in two groups and the neighbour tips the balance. The others are ``place`` of one
# group and the rest of the other; every place is tried, and the one at which the neighbour moves the model most becomes
# a pair. A sum of answers that are clipped one by one moves by the neighbour's own part alone, wherever the others
# stand.

#: (what the groups differ in, length of an answer in the one group and in the other, of the neighbour's two answers).
#: The lengths of directions are those of a sum near zero.
GROUPS = (
    ("length", -LARGE, 1e-3 * LARGE, -LARGE, SMALL),
    ("length", -3.0, 0.9, -3.0, SMALL),
    ("direction", -1.01 * LARGE, LARGE, -LARGE, SMALL),
    ("direction", -1.01, 1.0, -1.0, SMALL),
)
#: Places that are tried, at most.
MOST_PLACES = 16
#: Seed of these plays: the same for both answers.
SPLIT_SEED = 4321
#: (cohort, seed, calls) -> what leaves.
Play = Callable[..., Sequence[Played]]


def telling_cohorts(play: Play, size: int, clients: int, removed: bool = False) -> Iterator[Pair]:
    """For groups of lengths and of directions the pair at whose place the model moves most; none where it never does.
    play: of the subject. size: numbers of the model. clients: of a round. removed: the neighbour replies or not, in
    place of an update or next to none.
    """
    places = sorted({int(place) for place in np.linspace(1, clients - 2, min(MOST_PLACES, clients - 2))})
    for kind in ("length", "direction"):
        tried = [_pair(size, clients, place, *group) for group in GROUPS if group[0] == kind for place in places]
        tried = [removal(pair) for pair in tried] if removed else tried
        moves = [moved(play, pair) for pair in tried]
        if max(moves, default=0.0) > 0:
            yield tried[int(np.argmax(moves))]


def _pair(size: int, clients: int, place: int, kind: str, one: float, other: float, up: float, none: float) -> Pair:
    def answer(length: float) -> Trained:
        return Trained(plain(size, length))

    first, second = answer(one), answer(other)
    others = [first] * place + [second] * (clients - 1 - place)
    sides = [Cohort((answer(length), *others)) for length in (up, none)]
    name = f"one client's update and next to none, where the others are of two {kind}s, {size} numbers"
    return Pair(name, sides[0], sides[1], "zero-out", "client")


def removal(pair: Pair) -> Pair:
    """The left side of a pair of rounds against the same round without a reply of the neighbour."""
    first, _, rest = pair.name.partition(",")
    name = f"{first.removesuffix(' and next to none')} or no reply,{rest}"
    return Pair(name, pair.left, pair.left.without_the_first(), "add-or-remove-one", pair.unit)


def moved(play: Play, pair: Pair) -> float:
    """L2 norm of the difference of the models that leave under one seed; 0 where they cannot be compared."""
    try:
        models = [
            np.concatenate(
                [part for name, part in sorted(play(side, SPLIT_SEED)[0].numbers.items()) if name[:5] == "model"]
            )
            for side in (pair.left, pair.right)
        ]
    except Exception:  # of foreign code: the layers say so
        return 0.0
    found = float(np.linalg.norm(models[0] - models[1])) if len({len(one) for one in models}) == 1 else 0.0
    return found if np.isfinite(found) else 0.0


# --- server apps ------------------------------------------------------------------------------------------------------
# The strategy of a whole Flower ServerApp: what it starts is checked as a strategy is.

#: Nodes that the app finds connected.
NODES = 10


class _Started(BaseException):
    """Ends an app where it starts its strategy; no app's `except Exception` takes it."""

    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self.strategy = strategy


def strategy_of(app: ServerApp) -> Any:
    """The strategy that an app's function of components returns, or whose ``start`` its main function calls; the app
    runs up to there, with ten nodes and the configuration of the nearest pyproject.toml. Raises `NotTaken`.
    """
    makes, main = getattr(app, "_server_fn", None), getattr(app, "_main", None)
    function = main or makes
    given = empty_context(RUN_ID, SERVER_NODE, 0, NODES)
    given.run_config.update(config_near(getattr(function, "__globals__", {}).get("__file__")))
    if main is None:
        strategy = getattr(app, "_strategy", None) if makes is None else makes(given).strategy
    else:
        strategy = _started(main, given)
    if not isinstance(strategy, newer.Strategy | older.Strategy):
        raise NotTaken("the app starts no strategy of Flower: check what it does with replies as a function or a class")
    return strategy


def _started(main: Any, context: Any) -> Any:
    def start(self: Any, *_: Any, **__: Any) -> Any:
        raise _Started(self)

    identify_server()
    with ExitStack() as patched:
        for kind in {newer.Strategy, _ours()} - {None}:
            patched.enter_context(patch.object(kind, "start", start))
        try:
            main(Nodes(NODES), context)  # type: ignore[abstract]
        except _Started as found:
            return found.strategy
    return None


def _ours() -> Any:
    """The base of `fedpriv.flower`'s strategies, where the target has loaded it."""
    return getattr(sys.modules.get("fedpriv.apps.server"), "AppStrategy", None)


# --- old clients ------------------------------------------------------------------------------------------------------
# What Flower's older API puts at clients, as functions of a client's instructions and its result.

AtClient = Callable[[FitIns, FitRes], FitRes]


def older_mod(kind: str) -> AtClient:
    """A clipping mod of `flwr.client.mod` around a client's result."""
    mod = older_mods.fixedclipping_mod if kind == "fixed" else older_mods.adaptiveclipping_mod

    def at_client(asked: FitIns, result: FitRes) -> FitRes:
        identify_server()
        message = Message(compat.fitins_to_recorddict(asked, True), dst_node_id=CLIENT, message_type="train")
        stamp(message, "fit")

        def train(found: Message, _: Any) -> Message:
            return Message(compat.fitres_to_recorddict(result, True), reply_to=found)

        return compat.recorddict_to_fitres(mod(message, context(), train).content, True)

    return at_client


def dpfedavg_client(asked: FitIns, result: FitRes) -> FitRes:
    """`DPFedAvgNumPyClient` around a client's result."""
    answers: Any = _Answers(result)
    arrays, count, metrics = DPFedAvgNumPyClient(answers).fit(parameters_to_ndarrays(asked.parameters), asked.config)
    return FitRes(result.status, ndarrays_to_parameters(arrays), count, metrics)


class _Answers:
    """A NumPyClient, as far as its wrapper asks it."""

    def __init__(self, result: FitRes) -> None:
        self.result = result

    def fit(self, parameters: Any, config: Any) -> tuple[Any, int, dict[str, Any]]:
        return parameters_to_ndarrays(self.result.parameters), self.result.num_examples, dict(self.result.metrics)


# --- strategies known -------------------------------------------------------------------------------------------------
# Flower's own private strategies: what they claim, and what one round costs as it really runs.
#
# Throughout, C is the clip norm, n the number of clients that the wrapper expects (``num_sampled_clients``), m the
# number of replies, z the noise multiplier. Unit client, adjacency zero-out (the client takes part and has nothing to
# say), the observer sees models and broadcasts.

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
        fault = finding("noise-after-another-aggregate", text=unknown)
        return [replace(found, event=None, reason=unknown, findings=(fault,))]
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
    return Recognised(words, None, findings=[*findings, finding("noise-by-replies", what=what)])


def _fewer_replies(strategy: Any, z: float, n: int) -> Finding:
    least = next(
        (number for name in ("min_train_nodes", "min_fit_clients") if (number := getattr(inner(strategy), name, None))),
        1,
    )
    return finding("divided-by-replies", n=n, z=z, smallest=z * min(int(least), n) / n, least=least)


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
    per_round = gaussian_epsilon(2 / z, delta)
    findings.append(finding("cohort-of-fixed-size", config=config, n=n, per_round=per_round, delta=delta))
    findings.append(finding("metrics-not-accounted"))
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
        findings.append(finding("exact-share-in-metrics"))
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
        yield finding("noise-of-the-next-norm", least=least, model=z * least, stated=z)
        yield finding("norm-moves-away")
    yield finding(
        "count-of-whole-bits", deviation=deviation, real=(z ** (-2) + deviation ** (-2)) ** (-0.5), given=given
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


#: Clients of a round where the strategy does not say how many it expects.
CLIENTS = 10


#: Examples of a client that has far more than the others, who have 20.
MANY = 20_000
#: Plays of each side where it is asked whether metrics leave bare.
PLAYS = 8


def unlike(first: Trained, clients: int) -> Cohort:
    """The neighbour among others that all answer differently, in both directions: what a median, a quantile or a
    selection depends on.
    """
    size = sum(array.size for array in first.update.values())
    lengths = [(-1.0) ** place * 1.3 ** (place % 40) * 1e-2 for place in range(clients - 1)]
    return Cohort((first, *(Trained(plain(size, one), dict.fromkeys(first.metrics, 0.5)) for one in lengths)))


def cohort(first: Trained, others: float = SMALL) -> Cohort:
    """The neighbour, and others that all answer the same: next to nothing, in arrays like its own."""
    update = {
        name: np.full_like(array, others / max(1, array.size) ** 0.5 if array.dtype.kind == "f" else 0)
        for name, array in first.update.items()
    }
    return Cohort((first, Trained(update, dict.fromkeys(first.metrics, 0.5))))


class StrategySubject(RoundsSubject):
    """What leaves is the new model, its metrics and what the next round's messages say beside it: what anybody sees who
    is not the server. The server is trusted with replies.

    Data of a round are a `Cohort`. Clients of a wrapper that clips at the client have
    the mod that belongs to it, unless ``mods`` names others.
    """

    kind: ClassVar[str] = "Flower strategy"

    def __init__(
        self, strategy: Any, question: Question, name: str = "strategy", mods: Sequence[Any] | None = None
    ) -> None:
        self.strategy = strategy
        self.mods = list(client_mods(strategy) if mods is None else mods)
        self.kind_of_rounds: Any = NewRounds if isinstance(strategy, newer.Strategy) else OldRounds
        self.clients = expected_clients(strategy)
        self.nodes = nodes_for(strategy, self.clients)
        shared_modules()
        recognised = known_strategy(strategy, question)
        super().__init__(
            name=name,
            pairs=_pairs(question, self.clients),
            probes=[_lengths(question.dims[0])],
            recognised=recognised,
            claim=claim_of(recognised, question, "the strategy's own accountant", "zero-out"),
            observer="trusted-server",
            stateful=True,
        )
        claimed = question.claim is not None
        weights = list(self._weights())
        if weights and claimed:
            self.pairs = [*self.pairs, _heavy(min(question.dims))]
        notes = list[Finding]()
        removed = question.claim is not None and question.claim.adjacency == "add-or-remove-one"
        if removed and not self._publishes(self.pairs[0].left.without_the_first()):
            removed, notes = False, [finding("round-needs-all-replies")]
        self.pairs = [*self.pairs, *telling_cohorts(self.play, min(question.dims), self.clients, removed)]
        if removed:
            self.pairs = [*self._removals(question)]
        self.notes = [*self._metrics(claimed), *self._counts(question), *weights, *extremes(self._one), *notes]

    def quiet(self) -> AbstractContextManager[None]:
        return quiet()

    def rounds(self, data: Sequence[Cohort]) -> Iterator[dict[str, Numbers]]:
        rounds = self.kind_of_rounds(self.strategy, self.nodes, self.mods)
        for number, answers in enumerate(data, 1):
            yield rounds.round(number, answers)

    # --- a client that sends no reply --------------------------------------------------------------------------

    def _removals(self, question: Question) -> Iterator[Pair]:
        """The pairs of an update and next to none as pairs of a reply or no reply; the first of them stays, as a reply
        in place of another, which are two steps of the claim. And what a reply more changes beside its own part: a mean
        moves most where the others are opposite to it, noise by the number of replies most where they are few.
        """
        small, large = min(question.dims), max(question.dims)
        far = cohort(Trained(plain(small, LARGE)), -LARGE)
        few = replace(cohort(Trained(plain(large, SMALL))), silent=-2)
        yield from (pair if pair.adjacency == "add-or-remove-one" else removal(pair) for pair in self.pairs)
        yield removal(Pair(f"one client's update and next to none, opposite to the others, {small} numbers",
                           far, far, "", "client"))  # fmt: skip
        if all(self._publishes(replace(few, silent=number)) for number in (-2, -1)):
            yield Pair(f"two replies or one, {large} numbers", few, replace(few, silent=-1), "add-or-remove-one",
                       "client")  # fmt: skip
        yield replace(self.pairs[0], adjacency="replace-one")

    def _publishes(self, data: Cohort) -> bool:
        """Whether a model leaves after such a round."""
        try:
            return bool(self.play(data, SEED)[0].numbers["form.model"][0])
        except Exception:  # of foreign code, for fewer replies than it expects
            return False

    # --- what no pair has --------------------------------------------------------------------------------------

    def _one(self, trained: Trained, seed: int) -> dict[str, Numbers]:
        return dict(self.play(cohort(trained), seed)[0].numbers)

    def _metrics(self, claimed: bool) -> Iterator[Finding]:
        """Metrics of the clients that are published. claimed: somebody claims an epsilon of all that this strategy
        publishes: what then leaves bare is a fault.
        """
        for play, what in ((self._one, "metrics"), (self._evaluated, "evaluation's metrics")):
            try:
                sides = [
                    [Played(play(Trained(plain(8, length), {"loss": loss}), SEED + seed)) for seed in range(PLAYS)]
                    for loss, length in ((0.25, LARGE), (0.75, SMALL if what != "metrics" else LARGE))
                ]
            except Exception:  # of foreign code: the layers say so
                continue
            if names := bare_names(sides):
                severity: Severity = "fault" if claimed else "doubt"
                yield finding("metrics-bare:published", severity, what=what, names=", ".join(names[:3]), plays=PLAYS)

    def _counts(self, question: Question) -> Iterator[Finding]:
        """Numbers of examples that are published: a fault against a claim about all data of a client."""
        try:
            sides = [
                [Played(self._one(Trained(plain(8, 1.0), examples=many), SEED + seed)) for seed in range(PLAYS)]
                for many in (20, 31)
            ]
        except Exception:  # of foreign code: the layers say so
            return
        if names := bare_names(sides):
            of_clients = question.claim is not None and question.claim.unit == "client"
            yield finding("count-bare", "fault" if of_clients else None, names=", ".join(names[:3]))

    def _evaluated(self, trained: Trained, seed: int) -> dict[str, Numbers]:
        with seeded(seed), quiet():
            rounds = self.kind_of_rounds(self.strategy, self.nodes, self.mods)
            rounds.round(1, cohort(trained))  # what evaluation's messages say of it, too
            return rounds.evaluated(1, cohort(trained))

    def _weights(self) -> Iterator[Finding]:
        """Whether a client that reports more examples moves the model further."""
        usual, more = Trained(plain(8, LARGE)), Trained(plain(8, LARGE), examples=20_000_000)
        still = Trained(plain(8, SMALL))
        try:
            base, moved, weighted = (self._model(one) for one in (still, usual, more))
        except Exception:  # a strategy that refuses unequal weights
            return
        before, after = float(np.linalg.norm(moved - base)), float(np.linalg.norm(weighted - base))
        if before > 0 and after > 1.5 * before:
            yield finding("weights-by-reported-counts", clients=self.clients - 1, times=after / before)

    def _model(self, trained: Trained) -> Numbers:
        found = self._one(trained, SEED)
        return np.concatenate([found[name] for name in sorted(found) if name.startswith("model.")] or [np.zeros(1)])


def _pairs(question: Question, clients: int) -> list[Pair]:
    """One client's update, against next to none of the same client; if the claim is about one client's data against
    another's, opposite updates too.
    """
    found = []
    opposite = question.claim is not None and question.claim.adjacency == "replace-one"
    for size in question.dims:
        up, one, little = (
            cohort(Trained(update)) for update in (plain(size, LARGE), spike(size, LARGE), plain(size, SMALL))
        )
        tail = f", {size} numbers"
        found += [Pair("one client's update and next to none" + tail, up, little, "zero-out", "client")]
        if size == min(question.dims):
            mixed = [unlike(Trained(plain(size, length)), clients) for length in (LARGE, SMALL)]
            found += [
                Pair("one client's update in one place and next to none" + tail, one, little, "zero-out", "client"),
                Pair(
                    "one client's update and next to none, among unlike ones" + tail,
                    mixed[0],
                    mixed[1],
                    "zero-out",
                    "client",
                ),
                Pair(
                    "the last client's update and next to none" + tail,
                    replace(mixed[0], last=True),
                    replace(mixed[1], last=True),
                    "zero-out",
                    "client",
                ),
            ]
            if opposite:
                down = cohort(Trained(plain(size, -LARGE)))
                found.append(Pair("one client's update and its opposite" + tail, up, down, "replace-one", "client"))
    return found


def _heavy(size: int) -> Pair:
    """A client that has far more examples than the others: its update, against next to none."""
    up, little = (cohort(Trained(plain(size, length), examples=MANY)) for length in (LARGE, SMALL))
    return Pair(f"one client's update and next to none, of {MANY:,} examples", up, little, "zero-out", "client")


def _lengths(size: int) -> Probe:
    data = [cohort(Trained(plain(size, length))) for length in LENGTHS]
    return Probe("one client's update of growing length", "length", data, LENGTHS)


# --- clients of a round --------------------------------------------------------------------------------------


def expected_clients(strategy: Any) -> int:
    """Clients that a wrapper expects in a round; `CLIENTS` where none says."""
    found = strategy
    while found is not None:
        number = getattr(found, "num_sampled_clients", None)
        if isinstance(number, int):
            return max(2, number)
        found = inner(found)
    return CLIENTS


def nodes_for(strategy: Any, clients: int) -> int:
    """Connected nodes of which the innermost strategy samples ``clients``."""
    found = strategy
    while inner(found) is not None:
        found = inner(found)
    fraction = float(getattr(found, "fraction_train", getattr(found, "fraction_fit", 1.0)) or 1.0)
    least = max(getattr(found, name, 0) or 0 for name in ("min_available_nodes", "min_available_clients"))
    return max(math.ceil(clients / fraction - 1e-9), least, clients)


def recognises(target: Any, question: Question) -> Subject | None:
    """A strategy, a function without arguments that makes one, or a `ServerApp` that starts one."""
    if isinstance(target, ServerApp):
        return _subject(strategy_of(target), question, name="the strategy that the app starts")
    strategy = target
    if not isinstance(target, newer.Strategy | older.Strategy):
        if inspect.isclass(target) or not inspect.isroutine(target) or inspect.signature(target).parameters:
            return None
        strategy = target()
        if not isinstance(strategy, newer.Strategy | older.Strategy):
            return None
    return _subject(strategy, question)


def _subject(strategy: Any, question: Question, **named: str) -> Subject:
    if (ours := _ours()) is not None and isinstance(strategy, ours):
        raise of_ours(strategy.method)
    return StrategySubject(strategy, question, **named)
