"""The shared base of all server halves: who is asked, what is sent, how replies become the next global model.

A method's server file overrides `train_options` (what a round tells the clients), `aggregate` (how releases become
a step) or `configure_train` (an extra exchange). Rounds, sampling, checks of replies and counting are here.

Replies are used as they come, in the order of clients, and their releases forgotten: memory does not grow with the
cohort.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fedpriv.common.errors import RunFailed
from fedpriv.common.messages import (
    EXCHANGE,
    FIRST_NODE,
    MALFORMED,
    RUN,
    TRAIN,
    FloatVector,
    Instructions,
    MalformedMessage,
    Options,
    Refusal,
    Refused,
    Reply,
    check_size,
    label,
    num_bytes,
    pack_vector,
    read_reply,
    reason_of,
    refusal_name,
    train_content,
    unpack_vector,
)
from fedpriv.common.seeds import draw_cohort, generator
from fedpriv.privacy.events import Event
from fedpriv.server.nodes import as_they_come, ask_partitions, find_partitions
from fedpriv.server.round import FORGOTTEN, BudgetsSpent, Population, Replies, Round

#: What one exchange makes of a reply.
Answer = TypeVar("Answer")


class FederatedStrategy(Strategy):
    """Base of the server halves.

    min_replies: fewer usable replies end the run. client_sampling: fixed | poisson. weighting: uniform | examples.
    """

    #: Whether `public_loss` is wanted: the loss of theta on public pictures that are not reported on.
    needs_public_loss: ClassVar[bool] = False
    public_loss: Callable[[FloatVector], float] | None = None
    #: Numbers that every reply must hold beside its release; a reply without them is refused.
    statistics: tuple[str, ...] = ()
    #: (client, what arrived) -> its release (float32 [d]), where a method sends it in another form.
    decode: Callable[[int, Any], FloatVector] | None = None

    #: Whether `weights`, where a method overrides it, asks for nothing but who replied and the declared examples. Then,
    #: as with the weights below, `mean` needs no reply before it weighs the first.
    public_weights: bool = False
    #: Whether the round's step is taken without any reply as well: where outsiders must not learn who was drawn.
    steps_when_empty: bool = False
    #: Whether the guarantee rests on who is drawn: then, under ``rng=secure``, not even the seed tells it.
    secret_cohorts: bool = False

    def __init__(
        self,
        population: Population,
        *,
        min_replies: int = 1,
        client_sampling: str = "fixed",
        weighting: str = "uniform",
    ) -> None:
        self.population = population
        self.min_replies, self.client_sampling, self.weighting = min_replies, client_sampling, weighting
        self.current = Round(0, np.zeros(0, np.float32))
        self._nodes: dict[int, int] | None = None  # client -> node, on a grid that is not our own
        self.unnamed: Counter[str] = Counter()  # `refusal_name` of nodes that did not even say which client they are
        #: Called before the replies of a round are used that cannot be repeated bit for bit; session.py sets it.
        self.on_disturbance: Callable[[], None] = lambda: None
        #: Called with the clients of an exchange before they are asked; session.py sets it where it books for them.
        self.on_asking: Callable[[Sequence[int]], None] = lambda clients: None
        #: Called with every message that arrives; session.py sets it.
        self.on_progress: Callable[[], None] = lambda: None
        #: Whether `privacy.max_epsilon` allows a release of the server's own; session.py sets it.
        self.admits: Callable[[Event], bool] = lambda event: True

    # --- what a method may say ---------------------------------------------------------------------------

    def train_options(self, server_round: int) -> Options:
        """What the clients are told in this round besides the parameters."""
        return {}

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        """theta + weighted mean of the releases (float32 [d]); replies are sorted by client. Where only a part of theta
        goes up in this round, theta is that part.

        One pass over the replies takes them as they come; a method that needs more at once begins with
        ``list(replies)``. Too few replies end the run from within that pass.
        """
        return (theta + self.mean(theta.size, replies)).astype(np.float32)

    def mean(self, size: int, replies: Sequence[Reply]) -> NDArray[np.float64]:
        """Weighted mean of the releases (float64 [size]), summed in the order of clients.

        The weights are those of everybody who was asked; what the missing would have had is divided out at the end.
        So the sum needs no more than one release at a time, and depends on nothing but who replied and what.
        """
        total = np.zeros(size, np.float64)
        public = self.public_weights or type(self).weights is FederatedStrategy.weights
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
        if self.weighting == "uniform":
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

    # --- Flower's interface ------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        cohort = self.begin(server_round, arrays)
        return self.messages(grid, cohort, self._coming_down(arrays), self.train_options(server_round))

    def begin(self, server_round: int, arrays: ArrayRecord) -> list[int]:
        """A new round from theta; returns its cohort."""
        secret = self.secret_cohorts and self.population.rng == "secure"
        cohort = draw_cohort(
            secrets.randbits(128) if secret else self.population.seed,
            server_round,
            self.population.num_clients,
            max(self.population.clients_asked, self.population.clients_per_round),
            self.client_sampling,
        )
        self.current = Round(server_round, unpack_vector(arrays), cohort)
        return cohort

    def messages(
        self,
        grid: Grid,
        clients: Sequence[int],
        arrays: ArrayRecord | None,
        options: Options,
        own: Mapping[int, Options] = MappingProxyType({}),
    ) -> list[Message]:
        """The train messages of one exchange; a reply of anybody else will be ignored. own: options for one client;
        all others share one content, which nobody writes to.
        """
        number, nodes, messages = self.current.number, self.nodes(grid), []
        current, exchange = self.current, str(options.get(EXCHANGE, TRAIN))
        current.asked, current.label = list(clients), label(number, self.population.attempt, exchange)
        if self.population.run:
            options = options | {RUN: self.population.run}
            clients = [client for client in clients if client in nodes]  # nobody can ask a machine that is away
        self.on_asking(clients)
        if self.population.over_selects:  # on our own grids, which keep the order, chance says who comes first
            order = generator(self.population.seed, number, "arrival").permutation(len(clients)).tolist()
            clients = [clients[place] for place in order]
        same = train_content(arrays, Instructions(number, self.population.attempt, options))
        for client in clients:
            content = same
            if client in own:
                content = train_content(arrays, Instructions(number, self.population.attempt, options | own[client]))
            messages.append(Message(content, nodes[client], "train", group_id=current.label))
        sizes = [num_bytes(message.content) for message in (messages if own else messages[:1])]
        current.bytes_down += sum(sizes) if own else sum(sizes) * len(messages)
        return messages

    def ask(self, grid: Grid, messages: Sequence[Message], read: Callable[[Message, int], Answer]) -> list[Answer]:
        """A further exchange within `configure_train`: the usable answers, sorted by client."""
        return list(self._usable(self.receive(grid, messages, self.population.round_timeout), read))

    def require(self, usable: int) -> None:
        """Ends the run where fewer than ``min_replies`` clients can still take part in the round."""
        current = self.current
        if current.cohort and usable < self.min_replies:
            current.lost = sorted(set(current.cohort) - set(current.stopped))
            self._give_up(usable)

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
        deque(accepted, maxlen=0)  # to the end, where it is seen who is missing
        current.theta = theta
        current.bytes_up += sum(reply.num_bytes for reply in current.replies)
        current.figures |= self.figures(current.replies)
        return pack_vector(current.theta), None

    def _coming_down(self, arrays: ArrayRecord) -> ArrayRecord:
        """The part of theta that the clients of this round receive."""
        if self.population.exchange is None:
            return arrays
        return pack_vector(self.current.theta[self.population.exchange(self.current.number).down])

    def _goes_up(self) -> slice:
        """The part of theta that the replies of this round are about."""
        exchange = self.population.exchange
        return slice(0, self.current.theta.size) if exchange is None else exchange(self.current.number).up

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Nothing: the run's own table says more."""

    def start(  # type: ignore[override]
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        first_round: int = 1,
        on_round: Callable[[Round], None] | None = None,
    ) -> Result:
        """Runs rounds ``first_round..num_rounds`` (Flower's own always starts at 1, which a resumed run must not)."""
        result = Result()
        arrays = result.arrays = initial_arrays
        config = train_config or ConfigRecord()
        for server_round in range(first_round, num_rounds + 1):
            began = time.perf_counter()
            messages = self.configure_train(server_round, arrays, config, grid)
            replies = self.receive(grid, messages, timeout)
            new_arrays, _ = self.aggregate_train(server_round, replies)
            arrays = result.arrays = new_arrays or arrays
            self.current.seconds = time.perf_counter() - began
            if evaluate_fn and (metrics := evaluate_fn(server_round, arrays)) is not None:
                result.evaluate_metrics_serverapp[server_round] = metrics
            if on_round:
                on_round(self.current)
        return result

    # --- nodes and replies -------------------------------------------------------------------------------

    @staticmethod
    def receive(grid: Grid, messages: Iterable[Message], timeout: float) -> Iterable[Message]:
        """The replies of one exchange, none later than ``timeout`` seconds of the monotonic clock."""
        if hasattr(grid, "node_of_client"):
            return grid.send_and_receive(messages, timeout=timeout)
        return as_they_come(grid, messages, timeout)

    def nodes(self, grid: Grid) -> Any:
        """client -> node. Our own grids number nodes by partition; any other grid is waited for and asked once. Of real
        machines some may be away, and are looked for again in every exchange.
        """
        population = self.population
        if hasattr(grid, "node_of_client"):
            return grid.node_of_client
        if population.run and len(self._nodes or ()) < population.num_clients:
            self.unnamed.clear()
            count, wait = population.num_clients, population.round_timeout
            self._nodes = find_partitions(grid, count, wait, self._nodes, self.unnamed)
        elif self._nodes is None:
            self._nodes = ask_partitions(grid, population.num_clients, population.round_timeout)
        return self._nodes

    def _accept(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Usable replies sorted by client; the others are counted in the round with what was wrong. Ends as
        `aggregate_train` says where there are too few.
        """
        current, size = self.current, self.current.theta[self._goes_up()].size

        def read(message: Message, client: int) -> Reply:
            examples = self.population.num_examples(client)
            reply = read_reply(message, client, size, examples, self.statistics, self.decode)
            self.check(reply)
            return reply

        current.replies = []
        enough = self.population.clients_per_round if self.population.over_selects else None
        for reply in self._usable(messages, read, enough):
            current.replies.append(replace(reply, release=FORGOTTEN))
            yield reply
        replied = {reply.client for reply in current.replies}
        current.lost = sorted(set(current.cohort) - replied - set(current.stopped))
        if current.cohort and len(replied) < self.min_replies and not self.steps_when_empty:
            self._give_up(len(replied))

    def _usable(
        self, messages: Iterable[Message], read: Callable[[Message, int], Answer], enough: int | None = None
    ) -> Iterator[Answer]:
        """What ``read`` makes of the replies of one exchange, sorted by client; it refuses by `MalformedMessage`.

        A reply waits here for those of smaller clients. On our own grids none has to: they deliver in order. Where the
        first so many are ``enough``, these wait for each other; our own grids still let all others train, and their
        replies are late, while nobody waits for the clients of any other grid.
        """
        current, asked = self.current, set(self.current.asked)
        turns, answered, ours = deque(sorted(asked)), set[int](), self._nodes is None
        early: dict[int, Answer] = {}
        silent = set(asked)
        for message, client in self._with_clients(messages):
            self.on_progress()
            if ours:  # there a client has one reply, the right one or another
                silent.discard(client)
            if (wrong := self._why_ignored(message, client, asked, answered)) is not None:
                current.refused[wrong] += 1
                continue
            silent.discard(client)
            answered.add(client)
            if message.has_error():
                self._note_error(client, message)
            elif enough is not None and len(early) >= enough:
                current.late.append(client)
            else:
                try:
                    check_size(message.content, current.theta.size)
                    early[client] = read(message, client)
                except MalformedMessage as error:
                    current.errors[client] = f"refused: {error}"
                    current.codes[client] = MALFORMED
                    current.refused[error.kind] += 1
            while enough is None and turns and turns[0] in answered:
                if (turn := turns.popleft()) in early:
                    yield early.pop(turn)
            if enough is not None and len(early) >= enough and not ours:
                break
        yield from (early.pop(client) for client in turns if client in early)  # behind somebody who stayed silent
        current.stopped.sort()
        if silent:  # the clock, not the seed, decided who is in this round
            self.on_disturbance()

    def _why_ignored(self, message: Message, client: int, asked: set[int], answered: set[int]) -> Refused | None:
        """What is wrong with a reply that does not take its client's turn, so that the right one still can."""
        if message.metadata.group_id != self.current.label:
            return "stale"
        if client not in asked:
            return "unasked"
        return "duplicate" if client in answered else None

    def _note_error(self, client: int, message: Message) -> None:
        current, code = self.current, message.error.code
        current.codes[client] = refusal_name(code)
        if code == Refusal.BUDGET_SPENT:
            current.stopped.append(client)
        elif code == Refusal.LATE:
            current.late.append(client)
        elif code != Refusal.LOST:
            current.errors[client] = reason_of(message)
        if code == Refusal.WORKER_LOST:
            self.on_disturbance()

    def _with_clients(self, messages: Iterable[Message]) -> Iterable[tuple[Message, int]]:
        client_of = {node: client for client, node in self._nodes.items()} if self._nodes is not None else None
        for message in messages:
            node = message.metadata.src_node_id
            yield message, client_of.get(node, -1) if client_of is not None else node - FIRST_NODE

    def _give_up(self, usable: int) -> None:
        current = self.current
        if current.stopped and usable + len(current.stopped) >= self.min_replies:
            why = "have spent privacy.max_epsilon"
            if self.population.run:  # real machines: their own budgets and bounds, not this run's
                why = f"answered {'; '.join(what_to_do({'budget_spent': len(current.stopped)}))}"
            raise BudgetsSpent(
                f"round {current.number}: {len(current.stopped)} of {len(current.cohort)} clients {why}, "
                f"{usable} are left and "
                f"strategy.server.min_replies={self.min_replies}"
            )
        codes = Counter(current.codes.values()) + self.unnamed
        silent = [client for client in current.lost if client not in current.errors]
        words = [f"client {client}: {reason}" for client, reason in sorted(current.errors.items())[:10]]
        words += [f"client {client}: no reply" for client in silent[:10]]
        raise RunFailed(
            f"round {current.number}: {usable} usable replies of {len(current.cohort)}, "
            f"strategy.server.min_replies={self.min_replies}; " + "; ".join([*what_to_do(codes), *words])
        )


#: What whoever runs the server can do about a code, where it is a node's answer.
REMEDIES = {
    Refusal.POLICY: "their policies do not allow this run's options",
    Refusal.LEDGER: "their ledgers are missing, older than their counters, or in use",
    Refusal.BUNDLE: "they have not approved this app: `fedpriv.node bundle` prints the digest that a policy must name",
    Refusal.BUDGET_SPENT: "a budget or a bound of their own does not admit the release",
    Refusal.STALE: "they have answered a later round of this run: go on with its newest checkpoint",
    Refusal.UNSAFE_NOISE: "this server asked for less noise than the run's options say",
    Refusal.UNSAFE_CLIP_NORM: "this server announced a clip norm outside the run's bounds",
}


def what_to_do(codes: Mapping[str, int]) -> list[str]:
    """How many nodes gave each code, the most frequent first, and what it means."""
    known = {code.name.lower(): words for code, words in REMEDIES.items()}
    counts = sorted(codes.items(), key=lambda item: -item[1])
    return [f"{times} x {code} ({known[code]})" for code, times in counts if code in known]
