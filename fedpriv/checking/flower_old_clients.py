"""What Flower's older API puts at clients, as functions of a client's instructions and its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flwr.client.mod as older
from flwr.app import Message
from flwr.common import FitIns, FitRes, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.client.dpfedavg_numpy_client import DPFedAvgNumPyClient
from flwr.compat.common import recorddict_compat as compat

from fedpriv.checking.flower_messages import CLIENT, context
from fedpriv.engines.grid import identify_server, stamp

AtClient = Callable[[FitIns, FitRes], FitRes]


def older_mod(kind: str) -> AtClient:
    """A clipping mod of `flwr.client.mod` around a client's result."""
    mod = older.fixedclipping_mod if kind == "fixed" else older.adaptiveclipping_mod

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
