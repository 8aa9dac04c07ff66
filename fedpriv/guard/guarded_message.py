"""One message to a guarded machine: the app is started on the shards, and what leaves is the guard's answer.

| message | what leaves |
|---|---|
| train | the noisy sum of clipped answers, in the app's own form; in a secure sum, masked whole numbers |
| train, of the guard's own exchanges | the guard's terms; keys and shares of a secure sum |
| evaluate, query, of a type whose counts the policy declares | the noisy sum of clipped counts, by name |
| other evaluate | a fixed content: nothing is evaluated |
| other query, and all others | a refusal |

Whether and in which form it answers depends on the message, the policy and the ledger alone. What the app says beside
its arrays, and that it says nothing, goes to this machine's log and no further.
"""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedpriv.client.contract import BudgetSpent
from fedpriv.client.memory import StaleRequest, read_memory
from fedpriv.common.errors import LedgerRefused, PolicyRefused
from fedpriv.common.identities import Identity
from fedpriv.common.messages import (
    ATTEMPT,
    CONFIRM,
    KEYS,
    MOST_ROUND,
    ROUND,
    RUN,
    SHARES,
    TRAIN,
    UNMASK,
    MalformedMessage,
    Refusal,
    Request,
    blobs_content,
    refusal,
    shown,
    sized,
)
from fedpriv.deployment.data_ledger import DataLedger, Signer, note_refusal
from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.deployment.policy import Booked, Policy, read_policy
from fedpriv.guard.arrays import (
    EVALUATE_IN,
    FIT_IN,
    LARGE,
    METRICS,
    NUM_EXAMPLES,
    Model,
    Unanswerable,
    counted_content,
    fit_content,
    model_of,
    trained_content,
    zero_counts,
)
from fedpriv.guard.member_state import SumStore, masked_sum
from fedpriv.guard.record import counts_of, request_bytes
from fedpriv.guard.release import COUNTS, Terms
from fedpriv.guard.release import TRAIN as TRAINED
from fedpriv.guard.sandbox import Answer, Limits, Sandbox
from fedpriv.guard.shards import Shards, count_answers, read_salt, why_not
from fedpriv.mechanisms.integer_noise import pack_residues, to_residues
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.mechanisms.secure_noise import SecureNoise
from fedpriv.secure_sum.sum_session import SumRefused

log = logging.getLogger("fedpriv")

#: The record of the guard's own words in a message; an app never sees it.
GUARD = "fedpriv-guard"
#: The exchange that asks for the guard's terms.
TERMS = "terms"
#: Of a message whose record of that name is none.
UNREAD = "the guard's own record cannot be read"
#: Of an app that the policy does not list, or of which too few starts answered when it was tried.
NOT_ALLOWED = "this node's policy does not allow this app"
#: How a guarded message's run begins in the ledger.
RUN_OF_GUARD = "guard "
#: An array of a model in a secure sum's reply.
PACKED = "packed"

CODES: dict[type[Exception], Refusal] = {
    BudgetSpent: Refusal.BUDGET_SPENT,
    StaleRequest: Refusal.STALE,
    PolicyRefused: Refusal.POLICY,
    LedgerRefused: Refusal.LEDGER,
    SumRefused: Refusal.UNSAFE_SUM,
    MalformedMessage: Refusal.POLICY,
}
#: What a server reads beside a code: nothing of the data, of the ledger's content or of places on this machine.
SENTENCES: dict[Refusal, str] = {
    Refusal.FAILED: "this node could not answer; its own log says why",
    Refusal.BUDGET_SPENT: "this node's budget does not allow the answer",
    Refusal.STALE: "this node has answered a later round",
    Refusal.POLICY: "this node's policy does not allow the message",
    Refusal.LEDGER: "this node's ledger cannot record the answer",
    Refusal.UNSAFE_SUM: "the message breaks a rule of the secure sum",
}


class Box(Protocol):
    """`fedpriv.guard.sandbox.Sandbox`, or what a test has in its place."""

    def ask(self, message: bytes, shard: Path | None) -> Answer: ...


Boxes = Callable[..., AbstractContextManager[Box]]


@dataclass(frozen=True)
class Guard:
    """A machine and the app that a server brought. app: the folder where its bundle was unpacked; digest: the bundle's
    SHA-256; boxes: makes the sandbox of one message; source: of its noise and its coins.
    """

    client: int
    policy_file: Path
    data: Path
    app: Path
    digest: str
    identity: Identity | None = None
    boxes: Boxes = Sandbox
    source: Callable[[], NoiseSource] = field(default=SecureNoise)

    def __call__(self, message: Message, context: Context) -> Message:
        """The reply; of an exception a code and a sentence."""
        try:
            return Message(self._content(message, context), reply_to=message)
        except Exception as error:
            code = next((code for kind, code in CODES.items() if isinstance(error, kind)), Refusal.FAILED)
            if code == Refusal.FAILED:
                log.warning("client %d: %s", self.client, traceback.format_exc())
            note_refusal(self.data, code, str(error) if code != Refusal.FAILED else repr(error))
            sentence = error.sentence if isinstance(error, Unanswerable) else SENTENCES[code]
            return refusal(code, message, f"{code.name.lower()}: {sentence}")

    def _content(self, message: Message, context: Context) -> RecordDict:
        answering = _Answering(self, read_policy(self.policy_file), message, context)
        kind = message.metadata.message_type.partition(".")[0]
        if answering.counts is not None and kind != TRAIN:
            return answering.trained()
        if kind == "evaluate":
            return counted_content({}, np.zeros(0))
        if kind != TRAIN:
            raise Unanswerable(
                f"a {kind} is not declared by this node's policy"
                if kind == "query"
                else "messages of this type have no answer here",
                shown(message.metadata.message_type),
            )
        if answering.exchange == TRAIN:
            return answering.trained()
        if answering.exchange == TERMS:
            return blobs_content(TERMS, (str(self.client).encode(), answering.terms.to_json().encode()))
        return answering.in_sum()


class _Answering:
    """One message under one policy."""

    def __init__(self, guard: Guard, policy: Policy, message: Message, context: Context) -> None:
        if policy.guard is None:
            raise Unanswerable("this node's policy has no section `guard`")
        if policy.guard.apps != "any" and guard.digest not in policy.guard.apps:
            raise Unanswerable(NOT_ALLOWED, f"{guard.digest} is not in guard.apps")
        self.guard, self.policy, self.rules = guard, policy, policy.guard
        self.message, self.context = message, context
        self.terms = Terms.of(policy.guard)
        self.request = _request(message.content)
        #: The names and lengths of declared counts, which this message, or its exchange of a sum, is about.
        self.counts: Mapping[str, int] | None = None
        #: Of the answer: train, or what the policy declares its counts under.
        self.kind = str(self.request.options.get(COUNTS, message.metadata.message_type))
        if self.kind in self.terms.counts:
            self.counts = self.terms.counts[self.kind]["metrics"]
            self.terms, _ = self.terms.counted(self.kind)
        elif COUNTS in self.request.options:
            raise Unanswerable("a query is not declared by this node's policy", shown(self.kind))
        else:
            self.kind = TRAINED
        signer = None if guard.identity is None else Signer(guard.identity.private)
        self.ledger = DataLedger(guard.data, Path(policy.counter), signer)

    @property
    def exchange(self) -> str:
        return self.request.exchange

    @property
    def run(self) -> str:
        """In the ledger: the run, whose code it was, and whether that was trusted."""
        return f"{RUN_OF_GUARD}{self.context.run_id:x} app {self.guard.digest} sandbox {self.rules.sandbox}"

    @property
    def opened(self) -> str:
        """In the ledger: the declared counts that leave, if any do."""
        return "" if self.counts is None else self.kind

    @property
    def model(self) -> Model:
        """What fixes the form of an answer: the model that came down, or as many zeros as there are counts."""
        return self.received if self.counts is None else zero_counts(sum(self.counts.values()))

    @cached_property
    def received(self) -> Model:
        """What came down, without the guard's own record."""
        content = RecordDict({key: value for key, value in self.message.content.items() if key != GUARD})
        return model_of(content, self.policy.limits.max_parameters)

    # --- a train message -------------------------------------------------------------------------------------

    def check_tried(self) -> None:
        """Raises `Unanswerable` for an app that may not answer such a message, by its last trial."""
        guard = self.guard
        if (why := why_not(guard.data, guard.digest, self.policy, guard.client, self.kind)) is not None:
            raise Unanswerable(NOT_ALLOWED, f"guard.min_answered={self.rules.min_answered:g}: {why}")

    def trained(self) -> RecordDict:
        self.check_tried()
        with ExitStack() as stack:
            return self._trained(stack)

    def _trained(self, stack: ExitStack) -> RecordDict:
        model, terms = self.model, self.terms
        if terms.in_sum and GUARD not in self.message.content:
            raise Unanswerable("this node answers in secure sums alone", f"guard.noise={terms.noise}")
        with self.ledger.held() as ledger:
            booked = self._admitted(ledger)
            if terms.in_sum:
                self._sum(ledger).expect(self.request, model.vector)
            salt = read_salt(self.guard.data, self.ledger.counter, used=lambda: ledger.holds_run(RUN_OF_GUARD))
            shards = Shards(self.guard.data, self.rules, salt)
            files = stack.enter_context(shards.lent())
        source = self.guard.source()
        drawn, words = set(terms.drawn(source)), []

        def answers() -> Iterator[NDArray[np.float64]]:
            """Of all shards, those that were not drawn as zeros: time must not tell the draw."""
            for shard, (file, answer) in enumerate(zip(files, self.asked(shards.place, files), strict=True)):
                arrays = None if answer is None else self.taken(answer).arrays
                found = model.answer(arrays, terms.reply)
                words.append("not asked" if file is None else model.fault(arrays) or "answered")
                yield found if shard in drawn else np.zeros(model.size)

        release = terms.release(answers(), model.size, source)
        with self.ledger.held() as ledger:
            again = self._admitted(ledger)
            assert again.own == booked.own
            count_answers(self.guard.data, self.run, words)
            if terms.in_sum:
                return self._masked(ledger, again, release.numpy())
            ledger.append(again, self.run, self.opened)
            ledger.confirm()
        if self.counts is not None:
            return counted_content(self.counts, release.double().numpy() * terms.clip)
        update = release.double().numpy() * (terms.clip / terms.expected)
        return trained_content(model, model.vector + update if terms.reply == "difference" else update)

    def asked(self, place: Path, files: Sequence[Path | None]) -> Iterator[Answer | None]:
        """The app's answer for each shard, None for one that is not asked; raises nothing once the app was started."""
        rules, guard = self.rules, self.guard
        room = 2**16 if self.counts is None else 2**20
        limits = Limits.of(rules, 2 * self.model.num_bytes + room, rules.pad_seconds)
        request = request_bytes(self._app_message(), self._app_context(place))

        def box() -> AbstractContextManager[Box]:
            return guard.boxes(guard.app, place, limits, confined=rules.sandbox == "namespaces")

        return _asked(box, request, list(enumerate(files)), rules.pad_seconds or 0.0, self.model.size)

    def taken(self, answer: Answer) -> Answer:
        """What is read of an app's answer: to a message about counts the declared ones alone."""
        if self.counts is None or answer.arrays is None:
            return answer
        counted = counts_of(answer.arrays, self.counts)
        lacks = f"one of the counts {', '.join(self.counts)} is not in the reply, or has another length"
        return replace(answer, arrays=(counted,)) if counted is not None else replace(answer, arrays=None, fault=lacks)

    def _app_message(self) -> Message:
        """The message as its app gets it: without the guard's words, for a NumPyClient in the older form."""
        content = RecordDict({key: value for key, value in self.message.content.items() if key != GUARD})
        form = FIT_IN if self.counts is None else EVALUATE_IN
        newer = content.array_records and not next(iter(content.array_records)).startswith(form)
        if self.rules.api == "numpy" and newer and self.message.metadata.message_type in (TRAIN, "evaluate"):
            given = [dict(record) for record in content.config_records.values()]
            content = fit_content(self.received, given[0] if given else {}, form)
        asked = copy(self.message)
        asked.content = content
        return asked

    def _app_context(self, place: Path) -> Context:
        """What the app is told: nothing of earlier messages, and of this machine what its policy says."""
        config = {"partition-id": self.guard.client, "data-path": str(place), **self.rules.node_config}
        given = self.context
        return Context(given.run_id, given.node_id, config, RecordDict(), given.run_config)

    # --- the ledger ------------------------------------------------------------------------------------------

    def _admitted(self, ledger: DataLedger) -> Booked:
        """What the answer costs. Raises `BudgetSpent` where it may not leave."""
        ledger.require_client(self.run, self.guard.client)
        fixed = ledger.settle(self.policy)
        server_round = self.request.round or ledger.spent().messages + 1
        booked = self.terms.booked(self.model.size, self.guard.client, server_round)
        same = ledger.of_round(self.run, server_round)
        if (why := self.policy.refusal(ledger.spent(), booked, same, fixed)) is not None:
            raise BudgetSpent(why)
        return booked

    # --- a secure sum ----------------------------------------------------------------------------------------

    def in_sum(self) -> RecordDict:
        """Every exchange of a sum but TRAIN."""
        if not self.terms.in_sum or self.exchange not in (KEYS, SHARES, CONFIRM, UNMASK):
            raise Unanswerable("this node takes part in no such exchange", shown(self.exchange))
        size = self.request.options.get("size")
        if self.exchange == KEYS:
            self.check_tried()
        if self.exchange == KEYS and (not isinstance(size, int) or not 1 <= size <= self.policy.limits.max_parameters):
            raise Unanswerable(LARGE, shown(size))
        with self.ledger.held() as ledger:
            part = self._sum(ledger)
            out = part.answer(self.request, self.terms.bits, size if isinstance(size, int) else 0)
        return blobs_content(self.exchange, out.blobs)

    def _sum(self, ledger: DataLedger, book: Callable[[], None] | None = None) -> Any:
        guard = self.guard
        store = SumStore(ledger, f"{self.run} {self.request.options.get(RUN)}", book)
        return masked_sum(store, guard.client, guard.identity, self.terms, self.policy.limits.min_survivors)

    def _masked(self, ledger: DataLedger, booked: Booked, whole: NDArray[np.int64]) -> RecordDict:
        part = self._sum(ledger, lambda: ledger.append(booked, self.run, self.opened))
        part.expect(self.request, self.model.vector)
        residues = part.masked(to_residues(whole, self.terms.bits))
        part.site.store.keep(part.uploaded(read_memory(part.site.store)))
        packed = Model(self.model.key, {PACKED: pack_residues(residues, self.terms.bits)})
        return RecordDict({packed.key: packed.record(np.zeros(0)), METRICS: MetricRecord({NUM_EXAMPLES: 1})})


#: Of one number of an answer: operations of the node at most; processor cycles of one at most, which it takes where the
#: number is too small for a float's full precision (an assist by microcode); cycles in a second at least.
OPERATIONS, CYCLES, CLOCK_HZ = 32, 150, 1e9
#: Seconds between two starts of a fixed time in which the node works on an answer, and more for each of its numbers.
REST, REST_OF_A_NUMBER = 0.05, OPERATIONS * CYCLES / CLOCK_HZ


def _asked(
    box: Callable[[], AbstractContextManager[Box]],
    request: bytes,
    shards: Sequence[tuple[int, Path | None]],
    pad_seconds: float,
    size: int,
) -> Iterator[Answer | None]:
    """A sandbox that one shard's app broke is replaced before the next shard: what one shard does must not change what
    another answers. None: a shard that has no answer, and takes its time. Raises what the first start of a sandbox
    raises.

    pad_seconds: the time of a start, if it is fixed. Then what the caller does with an answer (of ``size`` numbers)
    before it asks for the next one takes a fixed time too: the next shard's app could read how long that was.
    """
    rest = REST + REST_OF_A_NUMBER * size
    with ExitStack() as stack:
        current: Box | None = stack.enter_context(box())
        for number, shard in shards:
            answer: Answer | None = None
            if shard is None:
                time.sleep(pad_seconds)
            else:
                try:
                    if current is None:
                        current = stack.enter_context(box())
                    answer = current.ask(request, shard)
                except Exception as error:
                    answer, current = Answer(None, 0.0, f"{type(error).__name__}: {error}"), None
                    with suppress(Exception):
                        stack.close()
                if answer.fault is not None:
                    log.warning("shard %d counts as a zero update: %s", number, answer.fault[:2000])
            ended = time.monotonic()
            yield answer
            if pad_seconds:
                work = time.monotonic() - ended
                if work > rest:
                    log.warning("shard %d: its answer took %.2f s to work on, more than %.2f", number, work, rest)
                left = rest * max(1, math.ceil(work / rest)) - work  # by whole rests, which tell no more than that
                time.sleep(max(0.0, left))


def _request(content: RecordDict) -> Request:
    """The guard's own words in a message; of one without them, the round that its server names, if it names one."""
    own = content.get(GUARD)
    if own is None:
        named = [record.get("server-round", record.get("server_round")) for record in content.config_records.values()]
        known = [number for number in named if type(number) is int and 0 < number <= MOST_ROUND]
        return Request(known[0] if known else 0)
    if not isinstance(own, ConfigRecord):
        raise Unanswerable(UNREAD)
    try:
        options = dict(sized(RecordDict({GUARD: own}))[GUARD])
    except MalformedMessage as error:
        raise Unanswerable(UNREAD, str(error)) from None
    number, attempt = options.pop(ROUND, None), options.pop(ATTEMPT, 0)
    for value in (number, attempt):
        if type(value) is not int or not 0 <= value <= MOST_ROUND:
            raise Unanswerable(UNREAD, f"round and attempt must be whole numbers, got {shown(value)}")
    return Request(int(number), int(attempt), options)  # type: ignore[arg-type]


__all__ = ["GUARD", "TERMS", "Guard", "GuardPolicy"]
