"""The shared base of all server halves: who is asked, and how replies become the next global model.

A method's server file overrides `train_options` (what a round tells the clients), `aggregate` (how releases become
a step) or `configure_train` (an extra exchange). Messages and replies: `fedpriv.server.exchange`.

Replies are used as they come, in the order of clients, and their releases forgotten: memory does not grow with the
cohort.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedpriv.common.cohort_messages import Refused, read_cohort
from fedpriv.common.cohorts import allocated_cohort, cohort_of
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import FloatVector, MalformedMessage, Options, pack_vector, unpack_vector
from fedpriv.common.replies import FORGOTTEN, Reply, read_reply
from fedpriv.config.options import MethodOptions
from fedpriv.server.exchange import Answer, Exchange, ReadAll
from fedpriv.server.nodes import ClientGrid
from fedpriv.server.optimizers import Optimizer
from fedpriv.server.round import NO_HOOKS, Hooks, Population, Replies, Round

#: No part of theta.
NOTHING = slice(0, 0)


class FederatedStrategy(Strategy):
    """Base of the server halves.

    ``options`` is the frozen schema of the half's options, whose class a subclass names by its annotation.
    """

    #: The half's own options.
    options: MethodOptions
    #: Whether `Hooks.public_loss` is wanted.
    needs_public_loss: ClassVar[bool] = False
    #: Numbers that every reply must hold beside its release; a reply without them is refused.
    statistics: tuple[str, ...] = ()
    #: (client, what arrived) -> its release (float32 [d]), where a method sends it in another form.
    decode: Callable[[int, Any], FloatVector] | None = None
    #: Whether `weights`, where a method overrides it, asks for nothing but who replied and the declared examples. Then,
    #: as with the weights below, `mean` needs no reply before it weighs the first.
    public_weights: bool = False
    #: Whether the round's step is taken without any reply as well: where outsiders must not learn who was drawn.
    steps_when_empty: bool = False
    #: Whether its own `configure_train` and `aggregate_train` look at no message: then one may be for many clients. A
    #: class says so for itself, not for those derived from it.
    in_rows: ClassVar[bool] = False
    #: Whether the guarantee rests on who is drawn: then, under ``rng=secure``, not even the seed tells it.
    secret_cohorts: bool = False

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        self.population, self.options, self.hooks = population, options, hooks
        self.exchange, self.cohorts = Exchange(population, hooks), Cohorts(population, self.options)
        self.optimizer = Optimizer(self.options)
        self.current = Round(0, np.zeros(0, np.float32))

    @final
    def let_go(self) -> None:
        """After the last round. What it reports to and asks leads back to it: while both hold each other, examples and
        all clients' memories stay until a collector comes, which counts objects, not gigabytes, and a study has many
        runs.
        """
        self.hooks = self.exchange.hooks = NO_HOOKS
        self.exchange.grid = self.decode = None

    # --- what a method may say ---------------------------------------------------------------------------

    def train_options(self, server_round: int) -> Options:
        """What the clients are told in this round besides the parameters."""
        return {}

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        """theta + weighted mean of the releases (float32 [d]); replies are sorted by client. Where only a part of theta
        goes up in this round, theta is that part; where values go up (`Layers.absolute`), their mean is theta's.

        One pass over the replies takes them as they come; a method that needs more at once begins with
        ``list(replies)``. Too few replies end the run from within that pass.
        """
        travelling = self.population.travelling
        whole = NOTHING if travelling is None else travelling(self.current.number).absolute
        return self.move(theta, self.mean(theta.size, replies), whole)

    @final
    def move(self, theta: FloatVector, update: NDArray[np.float64], whole: slice = NOTHING) -> FloatVector:
        """theta and what `strategy.server.optimizer` makes of a round's update (float32 [d], both of the part that goes
        up): how every method that adds an averaged update or gradient moves theta. whole: where ``update`` says what
        the weights are to be, not how far they move.

        Post-processing of ``update``, so a server that adds noise adds it before (`fedpriv.server.optimizers`).
        """
        if self.optimizer.plain:
            start = theta.copy()
            start[whole] = 0
            return (start + update).astype(np.float32)
        update = update.copy()
        update[whole] -= theta[whole]
        return (theta + self.optimizer.step(update, self._goes_up(), self.current.theta.size)).astype(np.float32)

    def mean(self, size: int, replies: Sequence[Reply]) -> NDArray[np.float64]:
        """Weighted mean of the releases (float64 [size]), summed in the order of clients.

        The weights are those of everybody who was asked; what the missing would have had is divided out at the end.
        So the sum needs no more than one release at a time, and depends on nothing but who replied and what.
        """
        total = np.zeros(size, np.float64)
        public = self.public_weights or type(self).weights is FederatedStrategy.weights
        public &= not self.population.counts_in_replies
        if not (public and isinstance(replies, Replies)):
            replies = list(replies)
            for weight, reply in zip(self.weights(replies), replies, strict=True):
                total += weight * reply.release
            return total
        expected = self._expected_weights()
        found = []
        for reply in replies:
            found.append(expected[reply.client])
            total += found[-1] * reply.release
        if len(found) < len(expected):
            total *= 1 / math.fsum(found)
        return total

    def _expected_weights(self) -> dict[int, float]:
        """client -> weight, if everybody replies who was asked."""
        asked, examples = sorted(set(self.current.asked)), self.population.num_examples
        weights = self.weights([Reply(client, FORGOTTEN, examples(client), {}, 0) for client in asked])
        return dict(zip(asked, weights, strict=True))

    def weights(self, replies: Sequence[Reply]) -> list[float]:
        """Weights over the replies that arrived; they sum to 1. See `public_weights`."""
        if self.options.weighting == "uniform":
            return [1 / len(replies)] * len(replies)
        total = sum(reply.num_examples for reply in replies)
        return [reply.num_examples / total for reply in replies]

    def check(self, reply: Reply) -> None:
        """Raises `MalformedMessage` for a reply that the method cannot use: it is refused, and the round goes on."""

    def figures(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """The method's own figures of a round for metrics.jsonl; the replies come without their releases."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold of the strategy besides theta (JSON values)."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""

    def vectors(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint must hold of the strategy as vectors."""
        return dict(self.optimizer.vectors())

    def load_vectors(self, vectors: Mapping[str, NDArray[Any]]) -> None:
        """Takes back what `vectors` gave."""
        self.optimizer.load_vectors(vectors)

    # --- Flower's interface ------------------------------------------------------------------------------

    def configure_train(  # type: ignore[override]
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: ClientGrid
    ) -> Iterable[Message]:
        cohort = self.begin(server_round, arrays)
        return self.messages(grid, cohort, self.coming_down(arrays), self.train_options(server_round))

    @final
    def begin(self, server_round: int, arrays: ArrayRecord) -> list[int]:
        """A new round from theta; returns its cohort."""
        cohort = self.cohorts.draw(server_round, self.secret_cohorts)
        self.current = Round(server_round, unpack_vector(arrays), cohort)
        return cohort

    @final
    def messages(
        self,
        grid: ClientGrid,
        clients: Sequence[int],
        arrays: ArrayRecord | None,
        options: Options,
        own: Mapping[int, Options] = MappingProxyType({}),
    ) -> list[Message]:
        """The train messages of one exchange; a reply of anybody else will be ignored. own: options for one client."""
        return self.exchange.messages(self.current, grid, clients, arrays, options, own)

    @classmethod
    @final
    def why_single_messages(cls) -> str | None:
        """Why a message is for one client alone, in words; None where it may be for many."""
        for name in ("configure_train", "messages", "aggregate_train"):
            writer = next(kind for kind in cls.__mro__ if name in vars(kind))
            if writer is not FederatedStrategy and not vars(writer).get("in_rows", False):
                return f"{writer.__name__}.{name} may look at the messages of single clients (in_rows)"
        return None

    @final
    def ask(
        self,
        grid: ClientGrid,
        messages: Sequence[Message],
        read: Callable[[Message, int], Answer],
        read_all: ReadAll[Answer] | None = None,
    ) -> list[Answer]:
        """A further exchange within `configure_train`: the usable answers, sorted by client."""
        replies = grid.receive(messages, self.population.round_timeout)
        return list(self.exchange.usable(self.current, replies, read, None, read_all))

    @final
    def require(self, usable: int) -> None:
        """Ends the run where fewer than ``min_replies`` clients can still take part in the round."""
        current = self.current
        if current.cohort and usable < self.options.min_replies:
            current.lost = sorted(set(current.cohort) - set(current.stopped))
            self.exchange.give_up(current, usable, self.options.min_replies)

    @final
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Checks the replies, orders them by client and takes the step.

        Raises `RunFailed` with the clients and their errors if fewer than ``min_replies`` are usable, `BudgetsSpent`
        if that is because clients have stopped.
        """
        current, accepted = self.current, Replies(self._accept(replies))
        if not accepted and not self.steps_when_empty:  # an empty Poisson cohort: nothing happened
            return pack_vector(current.theta), None
        up, theta = self._goes_up(), current.theta.copy()
        theta[up] = self.aggregate(current.theta[up], accepted)
        # Later rounds may do without, as dpsum's last do.
        if not self.optimizer.plain and self.optimizer.steps == 0 and current.number == 1:
            words = f"{type(self).__name__}.aggregate takes a step of its own (not by `move`): sgd, with lr=null"
            raise OptionError("strategy.server.optimizer", self.optimizer.name, words)
        deque(accepted, maxlen=0)  # to the end, where it is seen who is missing
        current.theta = theta
        current.bytes_up += sum(reply.num_bytes for reply in current.replies)
        current.figures |= self.figures(current.replies)
        return pack_vector(current.theta), None

    def coming_down(self, arrays: ArrayRecord) -> ArrayRecord:
        """The part of theta that the clients of this round receive."""
        if self.population.travelling is None:
            return arrays
        return pack_vector(self.current.theta[self.population.travelling(self.current.number).down])

    def _goes_up(self) -> slice:
        """The part of theta that the replies of this round are about."""
        travelling = self.population.travelling
        return slice(0, self.current.theta.size) if travelling is None else travelling(self.current.number).up

    @final
    def configure_evaluate(  # type: ignore[override]
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: ClientGrid
    ) -> Iterable[Message]:
        return []

    @final
    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    @final
    def summary(self) -> None:
        """Nothing: the run's own table says more."""

    @final
    def run_rounds(
        self,
        grid: ClientGrid,
        initial_arrays: ArrayRecord,
        num_rounds: int,
        timeout: float = 3600,
        first_round: int = 1,
        on_round: Callable[[Round], None] | None = None,
    ) -> ArrayRecord:
        """Rounds ``first_round..num_rounds`` of a run whose engine has set this half up; returns theta."""
        arrays, config = initial_arrays, ConfigRecord()
        for server_round in range(first_round, num_rounds + 1):
            began = time.perf_counter()
            messages = self.configure_train(server_round, arrays, config, grid)
            replies = grid.receive(messages, timeout)
            new_arrays, _ = self.aggregate_train(server_round, replies)
            arrays = new_arrays or arrays
            self.current.seconds = time.perf_counter() - began
            if on_round:
                on_round(self.current)
        return arrays

    def _accept(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Usable replies sorted by client; the others are counted in the round with what was wrong. Ends as
        `aggregate_train` says where there are too few.
        """
        current, size = self.current, self.current.theta[self._goes_up()].size

        def read(message: Message, client: int) -> Reply:
            examples = None if self.population.counts_in_replies else self.population.num_examples(client)
            return self._checked(read_reply(message, client, size, examples, self.statistics, self.decode))

        def read_all(message: Message) -> Iterator[tuple[int, Refused | Callable[[], Reply]]]:
            found = read_cohort(message, size, self.population.num_examples, self.statistics, self.decode)
            for client, outcome in found:
                yield client, outcome if isinstance(outcome, Refused) else partial(self._checked, outcome)

        current.replies = []
        enough = self.population.clients_per_round if self.population.over_selects else None
        for reply in self.exchange.usable(current, messages, read, enough, read_all):
            current.replies.append(reply.forgotten())
            if self.hooks.on_release is not None:
                self.hooks.on_release(current, reply)
            yield reply
        replied = {reply.client for reply in current.replies}
        current.lost = sorted(set(current.cohort) - replied - set(current.stopped))
        if self._had_its_turn(current):
            return
        if current.cohort and len(replied) < self.options.min_replies and not self.steps_when_empty:
            self.exchange.give_up(current, len(replied), self.options.min_replies)

    def _checked(self, reply: Reply | MalformedMessage) -> Reply:
        """Raises `MalformedMessage` for what the method cannot use."""
        if isinstance(reply, MalformedMessage):
            raise reply
        self.check(reply)
        return reply

    def _had_its_turn(self, current: Round) -> bool:
        """Whether a resumed run asks again for a round whose every client has taken part as often as its plan of
        participation allows. Those releases are lost, and paid for: theta stays, and the next cohort is asked.
        """
        planned = self.options.participation != "sampled" and self.population.attempt > 0
        return planned and bool(current.cohort) and set(current.stopped) == set(current.cohort)


class Cohorts:
    """The cohorts of one run, drawn in the order of its rounds.

    Where the guarantee rests on who is drawn (``secret``) and noise is the operating system's, cohorts are so too. An
    allocation then lives in this process alone, and a resumed run whose rounds cannot be repeated bit for bit begins
    with a new pass: a client's rounds of before have left, so those of one pass must not be released twice.
    """

    def __init__(self, population: Population, options: MethodOptions) -> None:
        self.population, self.options = population, options
        self._first: int | None = None  # the round that the first pass of this process begins with
        self._key: tuple[int, ...] = ()  # of the newest pass

    def draw(self, server_round: int, secret: bool) -> list[int]:
        """Sorted ids of the round's clients."""
        population, options = self.population, self.options
        hidden = secret and population.rng == "secure"
        asked = max(population.clients_asked, population.clients_per_round)
        if options.client_sampling == "balls":  # one pass, again and again
            if not self._key:
                again = (population.attempt,) if population.attempt else ()
                self._key = (secrets.randbits(128),) if hidden else (population.seed, *again)
            return allocated_cohort(self._key, (server_round - 1) % self.rounds, population.num_clients, self.rounds)
        if options.client_sampling != "allocated":
            seed = secrets.randbits(128) if hidden else population.seed
            drawn = (options.client_sampling, options.participation, options.groups, options.cohorts)
            return cohort_of(seed, server_round, population.num_clients, asked, *drawn)
        number, place = self._place(server_round)
        if place == 0 or not self._key:
            again = (population.attempt,) if population.attempt else ()  # other passes than before a resumed run
            self._key = (secrets.randbits(128),) if hidden else (population.seed, number, *again)
        return allocated_cohort(self._key, place, population.num_clients, self.rounds)

    @property
    def rounds(self) -> int:
        """t, of a pass."""
        return self.population.num_clients // self.population.clients_per_round

    def begins_pass(self, server_round: int) -> bool:
        """Whether a round is charged: every one, and of an allocation the first of each pass."""
        return self.options.client_sampling != "allocated" or self._place(server_round)[1] == 0

    def _place(self, server_round: int) -> tuple[int, int]:
        """(number of the pass, the round's place in it)."""
        if self._first is None:
            self._first = server_round if self.population.attempt else 1
        return divmod(server_round - self._first, self.rounds)
