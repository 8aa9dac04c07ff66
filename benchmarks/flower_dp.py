"""Flower's own differential privacy around the same apps, unchanged: `LocalDpMod`, and its central wrapper.

Both clip one answer for each machine, and noise it: the mod on the machine, the wrapper at the server, which must be
trusted. So one row more or less moves an answer from +C to -C at most (fedpriv.guard.release): their noise has standard
deviation 2 C m, where m is the multiplier whose exact epsilon over all rounds is the wanted one. The mod takes an
epsilon instead of a standard deviation, by the classical formula for one release; it gets the one that leads to 2 C m.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Strategy

from fedpriv.engines.grid import RUN_ID, identify_server, stamp
from fedpriv.guard.arrays import fit_content, model_of, trained_content
from fedpriv.guard.simulation import in_process

LOCAL, CENTRAL = "flower-local", "flower-central"
#: Numbers of a model at most.
LARGEST = 10**6


@dataclass
class Machines:
    """What a strategy of Flower's sees as its grid: apps in this process, each with a table of its own."""

    answer: Callable[[int, Message], Message]
    count: int

    def get_node_ids(self) -> list[int]:
        return list(range(1, self.count + 1))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [self.answer(number, message) for number, message in enumerate(messages)]


def flower_dp(
    app: Path,
    tables: Sequence[Path],
    arrays: ArrayRecord,
    rounds: int,
    *,
    form: str,
    clip: float,
    multiplier: float,
    delta: float,
    seed: int,
    run_config: dict[str, Any],
) -> ArrayRecord:
    """The model after these rounds. multiplier: of each round, standard deviation / (2 clip)."""
    identify_server()
    np.random.seed(seed)  # noqa: NPY002 - Flower's noise comes from numpy's global generator
    deviation = 2 * clip * multiplier
    classical = 2 * clip * math.sqrt(2 * math.log(1.25 / delta)) / deviation
    mod = LocalDpMod(clip, 2 * clip, classical, delta) if form == LOCAL else None
    with in_process(app, {}) as ask:

        def answer(number: int, message: Message) -> Message:
            table = tables[message.metadata.dst_node_id - 1]

            def app_alone(message: Message, context: Context) -> Message:
                model = model_of(message.content, LARGEST)
                found = ask(number, table, table, fit_content(model, {"server-round": 1}), run_config)
                assert found.arrays is not None, found.fault
                vector = model.vector + model.answer(found.arrays, "difference")
                return Message(trained_content(model, vector), reply_to=message)

            stamp(message, f"m{number}")
            reply = app_alone(message, CONTEXT) if mod is None else mod(message, CONTEXT, app_alone)
            stamp(reply, f"r{number}")
            return reply

        strategy: Strategy = FedAvg(fraction_evaluate=0.0)
        if form == CENTRAL:
            strategy = DifferentialPrivacyServerSideFixedClipping(strategy, 2 * multiplier, clip, len(tables))
        grid: Any = Machines(answer, len(tables))
        return strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds).arrays


CONTEXT = Context(RUN_ID, 1, {}, RecordDict(), {})
