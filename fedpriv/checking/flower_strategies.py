"""A strategy of either of Flower's generations, played with a cohort of clients whose first is the neighbour."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import flwr.server.strategy as older
import flwr.serverapp.strategy as newer
import numpy as np

from fedpriv.checking.findings import Finding
from fedpriv.checking.flower_cohort import Cohort, NewRounds, OldRounds
from fedpriv.checking.flower_extremes import SEED, extremes, metrics_pass
from fedpriv.checking.flower_messages import Trained, quiet, shared_modules
from fedpriv.checking.flower_strategies_known import client_mods, inner, known_strategy
from fedpriv.checking.flower_updates import LARGE, LENGTHS, SMALL, plain, spike
from fedpriv.checking.generators import seeded
from fedpriv.checking.rounds import RoundsSubject, claim_of
from fedpriv.checking.subject import Numbers, Pair, Probe, Question, Subject

#: Clients of a round where the strategy does not say how many it expects.
CLIENTS = 10


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
            pairs=_pairs(question.dims),
            probes=[_lengths(question.dims[0])],
            recognised=recognised,
            claim=claim_of(recognised, question, "the strategy's own accountant", "zero-out"),
            observer="trusted-server",
            stateful=True,
        )
        self.notes = [*self._metrics(), *self._weights(), *extremes(self._one)]

    def quiet(self) -> AbstractContextManager[None]:
        return quiet()

    def rounds(self, data: Sequence[Cohort]) -> Iterator[dict[str, Numbers]]:
        rounds = self.kind_of_rounds(self.strategy, self.nodes, self.mods)
        for number, answers in enumerate(data, 1):
            yield rounds.round(number, answers)

    # --- what no pair has --------------------------------------------------------------------------------------

    def _one(self, trained: Trained, seed: int) -> dict[str, Numbers]:
        return dict(self.play(cohort(trained), seed)[0].numbers)

    def _metrics(self) -> Iterator[Finding]:
        yield from (one for one in metrics_pass(self._one) if one.name == "metrics-bare")
        yield from (_of_evaluation(one) for one in metrics_pass(self._evaluated) if one.name == "metrics-bare")

    def _evaluated(self, trained: Trained, seed: int) -> dict[str, Numbers]:
        with seeded(seed), quiet():
            rounds = self.kind_of_rounds(self.strategy, self.nodes, self.mods)
            rounds.round(1, cohort(trained))
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
            yield Finding(
                "recognised",
                "weights-by-reported-counts",
                "doubt",
                f"Replies are weighted by the number of examples that they report: one client that reports far more "
                f"than the other {self.clients - 1} moves the model {after / before:.3g} times as far as with equal "
                f"numbers. The noise does not grow with it.",
                "Weigh all replies alike, or bound the numbers and calibrate the noise to the largest share.",
            )

    def _model(self, trained: Trained) -> Numbers:
        found = self._one(trained, SEED)
        return np.concatenate([found[name] for name in sorted(found) if name.startswith("model.")] or [np.zeros(1)])


def _of_evaluation(found: Finding) -> Finding:
    text = "The evaluation's metrics leave as the clients report them, in their mean: nothing adds noise to them."
    return Finding(found.layer, "evaluation-bare", "doubt", text, found.remedy)


def _pairs(dims: Sequence[int]) -> list[Pair]:
    """One client's update, against next to none of the same client."""
    found = []
    for size in dims:
        up, one, little = (
            cohort(Trained(update)) for update in (plain(size, LARGE), spike(size, LARGE), plain(size, SMALL))
        )
        tail = f", {size} numbers"
        found += [Pair("one client's update and next to none" + tail, up, little, "zero-out", "client")]
        if size == min(dims):
            found += [
                Pair("one client's update in one of" + tail[1:], one, little, "zero-out", "client"),
            ]
    return found


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
    """A strategy, or a function without arguments that makes one."""
    strategy = target
    if not isinstance(target, newer.Strategy | older.Strategy):
        if inspect.isclass(target) or not inspect.isroutine(target) or inspect.signature(target).parameters:
            return None
        strategy = target()
        if not isinstance(strategy, newer.Strategy | older.Strategy):
            return None
    return StrategySubject(strategy, question)
