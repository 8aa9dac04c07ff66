"""One message to a guarded machine: the app is started on the shards, and what leaves is the guard's answer.

| message | what leaves |
|---|---|
| train | the noisy sum of clipped answers, in the app's own form; in a secure sum, masked whole numbers |
| train, of the guard's own exchanges | the guard's terms; keys and shares of a secure sum |
| evaluate | a fixed content: nothing is evaluated |
| query, and all others | a refusal |

Whether and in which form it answers depends on the message, the policy and the ledger alone. What the app says beside
its arrays, and that it says nothing, goes to this machine's log and no further.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
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
from fedpriv.deployment.data_ledger import DataLedger
from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.deployment.policy import Booked, Policy, read_policy
from fedpriv.deployment.refusals import note_refusal
from fedpriv.deployment.signed_head import Signer
from fedpriv.guard.arrays import (
    FIT_IN,
    METRICS,
    NUM_EXAMPLES,
    Model,
    evaluated_content,
    fit_content,
    model_of,
    trained_content,
)
from fedpriv.guard.member_state import SumStore, masked_sum
from fedpriv.guard.record import request_bytes
from fedpriv.guard.sandbox import Answer, Limits, Sandbox
from fedpriv.guard.shard_counts import count_answers
from fedpriv.guard.shards import Shards, read_salt
from fedpriv.guard.terms import Terms
from fedpriv.mechanisms.integer_noise import pack_residues, to_residues
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.mechanisms.secure_noise import SecureNoise
from fedpriv.secure_sum.sum_session import SumRefused

log = logging.getLogger("fedpriv")

#: The record of the guard's own words in a message; an app never sees it.
GUARD = "fedpriv-guard"
#: The exchange that asks for the guard's terms.
TERMS = "terms"
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
        """The reply; of an exception a code alone."""
        try:
            return Message(self._content(message, context), reply_to=message)
        except Exception as error:
            code = next((code for kind, code in CODES.items() if isinstance(error, kind)), Refusal.FAILED)
            if code == Refusal.FAILED:
                log.warning("client %d: %s", self.client, traceback.format_exc())
            note_refusal(self.data, code, str(error) if code != Refusal.FAILED else repr(error))
            return refusal(code, message)

    def _content(self, message: Message, context: Context) -> RecordDict:
        answering = _Answering(self, read_policy(self.policy_file), message, context)
        kind = message.metadata.message_type.partition(".")[0]
        if kind == "evaluate":
            return evaluated_content()
        if kind != "train":
            raise PolicyRefused(f"a message of type {shown(kind)}: a guarded app answers train messages alone")
        if answering.exchange == TRAIN:
            return answering.trained()
        if answering.exchange == TERMS:
            return blobs_content(TERMS, (str(self.client).encode(), answering.terms.to_json().encode()))
        return answering.in_sum()


class _Answering:
    """One message under one policy."""

    def __init__(self, guard: Guard, policy: Policy, message: Message, context: Context) -> None:
        if policy.guard is None:
            raise PolicyRefused("guard: the policy has no such section")
        if policy.guard.apps != "any" and guard.digest not in policy.guard.apps:
            raise PolicyRefused(f"guard.apps: the app {guard.digest} is not among them")
        self.guard, self.policy, self.rules = guard, policy, policy.guard
        self.message, self.context = message, context
        self.terms = Terms.of(policy.guard)
        self.request = _request(message.content)
        signer = None if guard.identity is None else Signer(guard.identity.private)
        self.ledger = DataLedger(guard.data, Path(policy.counter), signer)

    @property
    def exchange(self) -> str:
        return self.request.exchange

    @property
    def run(self) -> str:
        """In the ledger: the run, whose code it was, and whether that was trusted."""
        return f"guard {self.context.run_id:x} app {self.guard.digest} sandbox {self.rules.sandbox}"

    @cached_property
    def model(self) -> Model:
        """What came down, without the guard's own record."""
        content = RecordDict({key: value for key, value in self.message.content.items() if key != GUARD})
        return model_of(content, self.policy.limits.max_parameters)

    # --- a train message -------------------------------------------------------------------------------------

    def trained(self) -> RecordDict:
        model, terms = self.model, self.terms
        if terms.in_sum and GUARD not in self.message.content:
            raise PolicyRefused(f"guard.noise={terms.noise}: this machine answers in secure sums alone")
        with self.ledger.held() as ledger:
            booked = self._admitted(ledger)
            if terms.in_sum:
                self._sum(ledger).expect(self.request, model.vector)
            salt = read_salt(self.guard.data, self.ledger.counter, unused=not ledger.spent().messages)
            shards = Shards(self.guard.data, self.rules, salt)
            files = shards.asked()  # under the lock: another message must not divide the data at the same time
        source = self.guard.source()
        drawn, words = set(terms.drawn(source)), []

        def answers() -> Iterator[NDArray[np.float64]]:
            """Of all shards, those that were not drawn as zeros: time must not tell the draw."""
            for shard, (file, arrays) in enumerate(zip(files, self.asked(shards.place, files), strict=True)):
                answer = model.answer(arrays, terms.reply)
                words.append("not asked" if file is None else model.fault(arrays) or "answered")
                yield answer if shard in drawn else np.zeros(model.size)

        release = terms.release(answers(), model.size, source)
        with self.ledger.held() as ledger:
            again = self._admitted(ledger)
            assert again.own == booked.own
            count_answers(self.guard.data, self.run, words)
            if terms.in_sum:
                return self._masked(ledger, again, release.numpy())
            ledger.append(again, self.run)
            ledger.confirm()
        update = release.double().numpy() * (terms.clip / terms.expected)
        return trained_content(model, model.vector + update if terms.reply == "difference" else update)

    def asked(self, place: Path, files: Sequence[Path | None]) -> Iterator[tuple[NDArray[Any], ...] | None]:
        """The app's arrays for each shard; raises nothing once the app was started."""
        rules, guard = self.rules, self.guard
        request = request_bytes(self._app_message(), self._app_context(place))

        def box() -> AbstractContextManager[Box]:
            return guard.boxes(guard.app, place, self._limits(), confined=rules.sandbox == "namespaces")

        return _asked(box, request, list(enumerate(files)), rules.pad_seconds or 0.0)

    def _limits(self) -> Limits:
        rules = self.rules
        return Limits(
            memory_bytes=rules.memory_mib * 2**20,
            processor_s=rules.processor_seconds,
            wall_s=rules.wall_seconds,
            answer_bytes=2 * self.model.num_bytes + 2**16,
            pad_s=rules.pad_seconds,
            processes=rules.processes,
        )

    def _app_message(self) -> Message:
        """The message as its app gets it: without the guard's words, for a NumPyClient in the older form."""
        content = RecordDict({key: value for key, value in self.message.content.items() if key != GUARD})
        if self.rules.api == "numpy" and not self.model.key.startswith(FIT_IN):
            given = [dict(record) for record in content.config_records.values()]
            content = fit_content(self.model, given[0] if given else {})
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
            raise PolicyRefused(f"there is no exchange {shown(self.exchange)}")
        size = self.request.options.get("size")
        if self.exchange == KEYS and (not isinstance(size, int) or not 1 <= size <= self.policy.limits.max_parameters):
            raise PolicyRefused(f"a sum of {shown(size)} numbers")
        with self.ledger.held() as ledger:
            part = self._sum(ledger)
            out = part.answer(self.request, self.terms.bits, size if isinstance(size, int) else 0)
        return blobs_content(self.exchange, out.blobs)

    def _sum(self, ledger: DataLedger, book: Callable[[], None] | None = None) -> Any:
        guard = self.guard
        store = SumStore(ledger, f"{self.run} {self.request.options.get(RUN)}", book)
        return masked_sum(store, guard.client, guard.identity, self.terms, self.policy.limits.min_survivors)

    def _masked(self, ledger: DataLedger, booked: Booked, whole: NDArray[np.int64]) -> RecordDict:
        part = self._sum(ledger, lambda: ledger.append(booked, self.run))
        part.expect(self.request, self.model.vector)
        residues = part.masked(to_residues(whole, self.terms.bits))
        memory = read_memory(part.site.store)
        part.site.store.keep(replace(memory, waiting=part.waiting))
        packed = Model(self.model.key, {PACKED: pack_residues(residues, self.terms.bits)})
        return RecordDict({packed.key: packed.record(np.zeros(0)), METRICS: MetricRecord({NUM_EXAMPLES: 1})})


def _asked(
    box: Callable[[], AbstractContextManager[Box]],
    request: bytes,
    shards: Sequence[tuple[int, Path | None]],
    pad_seconds: float,
) -> Iterator[tuple[NDArray[Any], ...] | None]:
    """A sandbox that one shard's app broke is replaced before the next shard: what one shard does must not change what
    another answers. None: a shard that has no answer, and takes its time. Raises what the first start of a sandbox
    raises.
    """
    with ExitStack() as stack:
        current: Box | None = stack.enter_context(box())
        for number, shard in shards:
            if shard is None:
                time.sleep(pad_seconds)
                yield None
                continue
            try:
                if current is None:
                    current = stack.enter_context(box())
                found = current.ask(request, shard)
                arrays, fault = found.arrays, found.fault
            except Exception as error:
                arrays, fault, current = None, f"{type(error).__name__}: {error}", None
                with suppress(Exception):
                    stack.close()
            if fault is not None:
                log.warning("shard %d counts as a zero update: %s", number, fault[:2000])
            yield arrays


def _request(content: RecordDict) -> Request:
    """The guard's own words in a message; of one without them, the round that its server names, if it names one."""
    own = content.get(GUARD)
    if own is None:
        named = [record.get("server-round", record.get("server_round")) for record in content.config_records.values()]
        known = [number for number in named if type(number) is int and 0 < number <= MOST_ROUND]
        return Request(known[0] if known else 0)
    if not isinstance(own, ConfigRecord):
        raise MalformedMessage(f"{GUARD}: of the wrong kind")
    options = dict(sized(RecordDict({GUARD: own}))[GUARD])
    number, attempt = options.pop(ROUND, None), options.pop(ATTEMPT, 0)
    for value in (number, attempt):
        if type(value) is not int or not 0 <= value <= MOST_ROUND:
            raise MalformedMessage(f"{GUARD}: round and attempt must be whole numbers, got {shown(value)}")
    return Request(int(number), int(attempt), options)  # type: ignore[arg-type]


__all__ = ["GUARD", "TERMS", "Guard", "GuardPolicy"]
