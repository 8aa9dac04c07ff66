"""A strategy of either of Flower's generations, played with a cohort of clients whose first is the neighbour."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

import flwr.server.strategy as older
import flwr.serverapp.strategy as newer
import numpy as np
from flwr.serverapp import ServerApp

from fedpriv.checking.findings import Finding
from fedpriv.checking.flower_cohort import Cohort, NewRounds, OldRounds
from fedpriv.checking.flower_extremes import SEED, extremes
from fedpriv.checking.flower_messages import Trained, quiet, shared_modules
from fedpriv.checking.flower_server_apps import strategy_of
from fedpriv.checking.flower_split import removal, telling_cohorts
from fedpriv.checking.flower_strategies_known import client_mods, inner, known_strategy
from fedpriv.checking.flower_updates import LARGE, LENGTHS, SMALL, plain, spike
from fedpriv.checking.generators import seeded
from fedpriv.checking.replay_numbers import bare_names
from fedpriv.checking.rounds import RoundsSubject, claim_of
from fedpriv.checking.subject import Numbers, Pair, Played, Probe, Question, Subject

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
            removed, notes = False, [ALL_REPLIES]
        self.pairs = [*self.pairs, *telling_cohorts(self.play, min(question.dims), self.clients, removed)]
        if removed:
            self.pairs = [*self._removals(question)]
        self.notes = [*self._metrics(claimed), *weights, *extremes(self._one), *notes]

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
        for name, play, what in (
            ("metrics-bare", self._one, "metrics"),
            ("evaluation-bare", self._evaluated, "evaluation's metrics"),
        ):
            try:
                sides = [
                    [Played(play(Trained(plain(8, 1.0), {"loss": value}), SEED + seed)) for seed in range(PLAYS)]
                    for value in (0.25, 0.75)
                ]
            except Exception:  # of foreign code: the layers say so
                continue
            if names := bare_names(sides):
                yield Finding(
                    "recognised",
                    name,
                    "fault" if claimed else "doubt",
                    f"The {what} of the clients are published without noise ({', '.join(names[:3])}): where one client "
                    f"reports 0.25 or 0.75, they never changed in {PLAYS} rounds with other seeds. If clients report "
                    "what they see in their data, epsilon is infinite.",
                    "Publish no metric, or one with noise of its own that is accounted.",
                )

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
            ]
            if opposite:
                down = cohort(Trained(plain(size, -LARGE)))
                found.append(Pair("one client's update and its opposite" + tail, up, down, "replace-one", "client"))
    return found


ALL_REPLIES = Finding(
    "recognised", "round-needs-all-replies", "doubt",
    "With one reply fewer no model leaves: whether all replied is told to everybody. The claim is about a client more "
    "or less; a client without an update was compared instead.",
    "Let a round with fewer replies publish a model as well, or say that who replies is public.",
)  # fmt: skip


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
        return StrategySubject(strategy_of(target), question, name="the strategy that the app starts")
    strategy = target
    if not isinstance(target, newer.Strategy | older.Strategy):
        if inspect.isclass(target) or not inspect.isroutine(target) or inspect.signature(target).parameters:
            return None
        strategy = target()
        if not isinstance(strategy, newer.Strategy | older.Strategy):
            return None
    return StrategySubject(strategy, question)
