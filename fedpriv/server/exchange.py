"""One exchange of a round: the messages that ask clients, and the replies that may be used.

Replies are checked, put in the order of clients and handed on one at a time: memory does not grow with the cohort.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn, TypeVar

from flwr.app import ArrayRecord, Message

from fedpriv.common.cohort_messages import COHORT, Refused, for_cohort
from fedpriv.common.errors import RunFailed
from fedpriv.common.messages import (
    EXCHANGE,
    RUN,
    TRAIN,
    MalformedMessage,
    Options,
    Refusal,
    Request,
    bytes_of_options,
    check_size,
    label,
    num_bytes,
)
from fedpriv.common.messages import Refused as Kind
from fedpriv.common.replies import MALFORMED, reason_of, refusal_name, train_content
from fedpriv.common.seeds import generator
from fedpriv.server.nodes import ClientGrid
from fedpriv.server.round import BudgetsSpent, Hooks, Population, Round

#: What one exchange makes of a reply.
Answer = TypeVar("Answer")
#: Of a message for many clients: each client, and why it answered nothing or what gives its answer.
ReadAll = Callable[[Message], Iterator[tuple[int, Refused | Callable[[], Answer]]]]


class Exchange:
    """Asks clients over a grid and reads what they answer, on behalf of a server half."""

    def __init__(self, population: Population, hooks: Hooks) -> None:
        self.population, self.hooks = population, hooks
        self.grid: ClientGrid | None = None  # the one that the last messages are for

    def messages(
        self,
        current: Round,
        grid: ClientGrid,
        clients: Sequence[int],
        arrays: ArrayRecord | None,
        options: Options,
        own: Mapping[int, Options] = MappingProxyType({}),
    ) -> list[Message]:
        """The train messages of one exchange; a reply of anybody else will be ignored. own: options for one client;
        all others share one content, which nobody writes to.
        """
        number, nodes, messages = current.number, grid.nodes(), list[Message]()
        self.grid, exchange = grid, str(options.get(EXCHANGE, TRAIN))
        current.asked, current.label = list(clients), label(number, self.population.attempt, exchange)
        current.answered, current.away = set(), []
        if self.population.run:
            options = options | {RUN: self.population.run}
            current.away = [client for client in clients if client not in nodes]
            clients = [client for client in clients if client in nodes]
        self.hooks.on_asking(clients)
        if self.population.over_selects:  # on our own grids, which keep the order, chance says who comes first
            order = generator(self.population.seed, number, "arrival").permutation(len(clients)).tolist()
            clients = [clients[place] for place in order]
        same = train_content(arrays, Request(number, self.population.attempt, options))
        together = grid.carries_cohorts and len(clients) > 1
        if together and (content := for_cohort(same, clients, own)) is not None:
            told = sum(bytes_of_options(own[client]) for client in clients if client in own)
            current.bytes_down += num_bytes(same) * len(clients) + told
            return [Message(content, nodes[clients[0]], "train", group_id=current.label)]
        for client in clients:
            content = same
            if client in own:
                content = train_content(arrays, Request(number, self.population.attempt, options | own[client]))
            messages.append(Message(content, nodes[client], "train", group_id=current.label))
        sizes = [num_bytes(message.content) for message in (messages if own else messages[:1])]
        current.bytes_down += sum(sizes) if own else sum(sizes) * len(messages)
        return messages

    def usable(
        self,
        current: Round,
        messages: Iterable[Message],
        read: Callable[[Message, int], Answer],
        enough: int | None = None,
        read_all: ReadAll[Answer] | None = None,
    ) -> Iterator[Answer]:
        """What ``read`` makes of the replies of one exchange, sorted by client; it refuses by `MalformedMessage`.
        read_all: of a message for many clients, the same of each.

        A reply waits here for those of smaller clients. On our own grids none has to: they deliver in order. Where the
        first so many are ``enough``, these wait for each other; our own grids still let all others train, and their
        replies are late, while nobody waits for the clients of any other grid.
        """
        assert self.grid is not None, "messages go out before replies come"
        grid, asked = self.grid, set(current.asked)
        turns, answered = deque(sorted(asked)), set[int]()
        early: dict[int, Answer] = {}
        silent = set(asked)
        for message, client, outcome in self._outcomes(current, messages, read, read_all):
            if grid.in_order:  # there a client has one reply, the right one or another
                silent.discard(client)
            if (wrong := _why_ignored(current, message, client, asked, answered)) is not None:
                current.refused[wrong] += 1
                continue
            silent.discard(client)
            answered.add(client)
            if isinstance(outcome, Refused):
                self._note_error(current, client, outcome)
            elif enough is not None and len(early) >= enough:
                current.late.append(client)
            else:
                try:
                    early[client] = outcome()
                    current.answered.add(client)
                except MalformedMessage as error:
                    current.errors[client] = f"refused: {error}"
                    current.codes[client] = MALFORMED
                    current.refused[error.kind] += 1
            while enough is None and turns and turns[0] in answered:
                if (turn := turns.popleft()) in early:
                    yield early.pop(turn)
            if enough is not None and len(early) >= enough and not grid.in_order:
                break
        yield from (early.pop(client) for client in turns if client in early)  # after somebody who stayed silent
        current.stopped.sort()
        if silent:  # the clock, not the seed, decided who is in this round
            self.hooks.on_disturbance()

    def _outcomes(
        self,
        current: Round,
        messages: Iterable[Message],
        read: Callable[[Message, int], Answer],
        read_all: ReadAll[Answer] | None,
    ) -> Iterator[tuple[Message, int, Refused | Callable[[], Answer]]]:
        """(the message, its client, why it answered nothing or what reads its answer), of messages for one or many."""
        assert self.grid is not None, "messages go out before replies come"
        for message in messages:
            self.hooks.on_progress()
            if read_all is not None and message.has_content() and COHORT in message.content:
                yield from ((message, client, outcome) for client, outcome in read_all(message))
                continue
            client = self.grid.client_of(message.metadata.src_node_id)
            if message.has_error():
                yield message, client, Refused(message.error.code, reason_of(message))
                continue

            def read_it(message: Message = message, client: int = client) -> Answer:
                check_size(message.content, current.theta.size)
                return read(message, client)

            yield message, client, read_it

    def _note_error(self, current: Round, client: int, refused: Refused) -> None:
        code = refused.code
        current.codes[client] = refusal_name(code)
        if code == Refusal.BUDGET_SPENT:
            current.stopped.append(client)
        elif code == Refusal.LATE:
            current.late.append(client)
        elif code != Refusal.LOST:
            current.errors[client] = refused.reason
        if code == Refusal.WORKER_LOST:
            self.hooks.on_disturbance()

    def give_up(self, current: Round, usable: int, least: int, why_least: str = "") -> NoReturn:
        """Ends the run: raises `BudgetsSpent` where clients have stopped, otherwise `RunFailed` with their errors.

        least: how many are needed. why_least: in words; by default it is ``min_replies``.
        """
        why_least = why_least or f"strategy.server.min_replies={least}"
        if current.stopped and usable + len(current.stopped) >= least:
            why = "have spent privacy.max_epsilon, or their participations"
            if self.population.run:  # real machines: their own budgets and bounds, not this run's
                why = f"answered {'; '.join(what_to_do({'budget_spent': len(current.stopped)}))}"
            raise BudgetsSpent(
                f"round {current.number}: {len(current.stopped)} of {len(current.cohort)} clients {why}, "
                f"{usable} are left and {why_least}"
            )
        words = what_to_do(Counter(current.codes.values()))
        if unnamed := what_to_do(self.grid.unnamed if self.grid else {}):
            words.append(f"of nodes that did not say which client they are: {', '.join(unnamed)}")
        words += [f"client {client}: {reason}" for client, reason in sorted(current.errors.items())[:10]]
        silent = [client for client in current.lost if client not in {*current.errors, *current.answered}]
        missing = "no connected node has said that it is this client"
        words += [f"client {client}: {missing if client in current.away else 'no reply'}" for client in silent[:10]]
        raise RunFailed(
            f"round {current.number}: {usable} usable replies of {len(current.cohort)}, {why_least}; {'; '.join(words)}"
        )


def _why_ignored(current: Round, message: Message, client: int, asked: set[int], answered: set[int]) -> Kind | None:
    """What is wrong with a reply that does not take its client's turn, so that the right one still can."""
    if message.metadata.group_id != current.label:
        return "stale"
    if client not in asked:
        return "unasked"
    return "duplicate" if client in answered else None


#: What the server's operator can do about a code that a node answered.
REMEDIES = {
    Refusal.POLICY: "their policies do not allow this run's options: each node's log names option and bound, "
    "and `fedpriv plan policy=FILE` says before a run what a policy refuses",
    Refusal.LEDGER: "their ledgers are missing, older than their counters, or in use",
    Refusal.BUNDLE: "they have not approved this app: `fedpriv.node bundle` prints the digest that a policy must name",
    Refusal.BUDGET_SPENT: "a budget or a bound of their own does not admit the release",
    Refusal.STALE: "they have answered a later round of this run: go on with its newest checkpoint",
    Refusal.UNSAFE_NOISE: "this server asked for less noise than the run's options say",
    Refusal.UNSAFE_CLIP_NORM: "this server announced a clip norm outside the run's bounds",
    Refusal.UNSAFE_SUM: "a rule of the secure sum is broken: other options, other identities, or too few clients",
}


def what_to_do(codes: Mapping[str, int]) -> list[str]:
    """How many nodes gave each code, the most frequent first, and what it means."""
    known = {code.name.lower(): words for code, words in REMEDIES.items()}
    counts = sorted(codes.items(), key=lambda item: -item[1])
    return [f"{times} x {code} ({known[code]})" for code, times in counts if code in known]
