"""Flower's secure sums (SecAgg, SecAgg+): what the masks hide, and what leaves beside them.

A play is one whole round: Flower's own workflow at the server, the mod at every client. The masked vectors, keys and
shares are not among the numbers: what they hide is assumed, as of every secure sum. What is left is the sum, and what
the neighbour's message holds beside its masked vector.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.client.mod.utils import make_ffn
from flwr.common import Parameters, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as Workflow

from fedpriv.checking.findings import Finding
from fedpriv.checking.flower_cohort import Cohort, Nodes, OldClients
from fedpriv.checking.flower_extremes import metrics_pass
from fedpriv.checking.flower_messages import (
    Trained,
    arrays_in,
    context,
    fresh,
    model,
    numbers_of,
    quiet,
    reply,
    shared_modules,
)
from fedpriv.checking.flower_mods_known import known_mods
from fedpriv.checking.flower_strategies import cohort
from fedpriv.checking.flower_updates import plain
from fedpriv.checking.rounds import RoundsSubject, claim_of
from fedpriv.checking.subject import Numbers, Pair, Question, Subject
from fedpriv.engines.grid import SERVER_NODE, identify_server, stamp

#: Clients of a round.
MEMBERS = 3


class SumSubject(RoundsSubject):
    """mods: outermost first; one of them masks. workflow: the server's; its own defaults where None is given."""

    kind: ClassVar[str] = "Flower secure sum"

    def __init__(self, mods: Sequence[Any], question: Question, workflow: Any = None, name: str = "secure sum") -> None:
        self.mods = list(mods)
        self.workflow = workflow or SecAggPlusWorkflow(num_shares=MEMBERS, reconstruction_threshold=2)
        shared_modules()
        recognised = known_mods(self.mods, "replace-one")
        claim = claim_of(recognised, question, "the mod", "replace-one")
        pairs = []
        for size in question.dims:
            up = Trained(plain(size, 1.0))
            tail = f", {size} numbers"
            pairs.append(Pair("opposite updates" + tail, cohort(up), cohort(up.scaled(-1.0)), "replace-one", "client"))
        super().__init__(
            name=name,
            pairs=pairs,
            recognised=recognised,
            claim=claim,
            observer="secure-sum" if recognised[0].event is None else "server",
        )
        self.notes = [*self._beside(), *_range(self.workflow), *_masks()]

    def quiet(self) -> AbstractContextManager[None]:
        return quiet()

    def rounds(self, data: Sequence[Cohort]) -> Iterator[dict[str, Numbers]]:
        sums = _Sums(self.mods, fresh(self.workflow))
        for number, answers in enumerate(data, 1):
            yield sums.round(number, answers)

    def _beside(self) -> Iterator[Finding]:
        """Metrics and counts beside the masked vector."""

        def play(trained: Trained, seed: int) -> dict[str, Numbers]:
            found = self.play(cohort(trained), seed)[0].numbers
            return {name: value for name, value in found.items() if not name.startswith("sum.")}

        yield from metrics_pass(play)


class _Sums:
    """Rounds of one secure sum; a client's context stays with it."""

    def __init__(self, mods: Sequence[Any], workflow: Any) -> None:
        identify_server()
        self.mods, self.workflow = [fresh(mod) for mod in mods], workflow
        self.contexts = [context() for _ in range(MEMBERS)]
        self.parameters: Parameters | None = None

    def round(self, number: int, answers: Cohort) -> dict[str, Numbers]:
        if self.parameters is None:
            self.parameters = ndarrays_to_parameters(list(model(answers.clients[0].update).values()))
        clients = OldClients(MEMBERS)
        for place, proxy in enumerate(clients.proxies.values()):
            proxy.node_id = place + 1
        state = RecordDict()
        kept = LegacyContext(
            context=_server(state),
            config=ServerConfig(num_rounds=1),
            strategy=FedAvg(min_fit_clients=MEMBERS, min_available_clients=MEMBERS),
            client_manager=clients,
        )
        kept.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Workflow.CURRENT_ROUND: number})
        kept.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(self.parameters, True)
        members = _Members(self, list(answers.of(MEMBERS)))
        self.workflow(members, kept)
        arrays = kept.state.array_records[MAIN_PARAMS_RECORD]
        self.parameters = compat.arrayrecord_to_parameters(arrays, True)
        return arrays_in(arrays, "sum") | members.beside


def _server(state: RecordDict) -> Any:
    found = context()
    found.node_id, found.state = SERVER_NODE, state
    return found


class _Members(Nodes):
    """A grid whose nodes answer at once; what the neighbour's message holds beside its masked vector is kept."""

    def __init__(self, sums: _Sums, trained: Sequence[Trained]) -> None:
        super().__init__(len(trained))
        self.sums, self.trained = sums, trained
        self.beside: dict[str, Numbers] = {}
        self.sent = 0

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [self._answer(message) for message in messages]

    def _answer(self, message: Message) -> Message:
        place = message.metadata.dst_node_id - 1
        self.sent += 1
        message.content = copy.deepcopy(message.content)  # as a connection would: the mod takes its message apart
        stamp(message, f"sum-{self.sent}")
        trained = self.trained[place]
        app = make_ffn(lambda asked, _: reply(trained, asked), self.sums.mods)
        found = app(message, self.sums.contexts[place])
        answered: Any = found.content.config_records.get(RECORD_KEY_CONFIGS, {})
        if place == 0 and Key.MASKED_PARAMETERS in answered:
            shown = RecordDict({name: part for name, part in found.content.items() if name != RECORD_KEY_CONFIGS})
            self.beside = numbers_of(Message(shown, dst_node_id=1, message_type="train"))
        return found


# --- what is known of the protocol -----------------------------------------------------------------------------


def _range(workflow: Any) -> Iterator[Finding]:
    """The quantisation bounds every number alone, which bounds no epsilon."""
    yield Finding(
        "recognised",
        "sum-of-bounded-numbers",
        "note",
        f"Every number of a client's weighted model is cut to +-{workflow.clipping_range:g} and rounded at random to "
        f"{workflow.quantization_range} steps; weights above {workflow.max_weight:g} overflow. That bounds what one "
        "client adds to a number of the sum, without noise: no epsilon follows.",
        "Clip the update's norm and add noise before it is masked.",
    )


def _masks() -> Iterator[Finding]:
    """Whether two unequal secrets give the same mask."""
    one = pseudo_rand_gen(bytes(32), 2**16, [(8,)])[0]
    other = pseudo_rand_gen(b"\x01\0\0\0" * 2 + bytes(24), 2**16, [(8,)])[0]
    if np.array_equal(one, other):
        yield Finding(
            "recognised",
            "masks-of-32-bits",
            "doubt",
            "Masks are drawn from a seed of 32 bits: secrets of 256 bits are folded into it, and unequal ones give the "
            "same mask. A server that tries all seeds sees the vectors (flwrlabs/flower, issue 7522).",
            "Expand the whole secret with a cryptographic generator.",
        )


def recognises(target: Any, question: Question) -> Subject | None:
    """Mods among which one masks; or the workflow of a secure sum, whose clients then have Flower's own mod."""
    from flwr.client.mod import secaggplus_mod

    from fedpriv.checking.flower_mods_known import MASKING

    if isinstance(target, SecAggPlusWorkflow):
        return SumSubject([secaggplus_mod], question, target)
    mods = list(target) if isinstance(target, list | tuple) else [target]
    if not any(mod is one for mod in mods for one in MASKING):
        return None
    return SumSubject(mods, question)
