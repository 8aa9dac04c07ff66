"""The shared base of clients that are asked twice in a round: for statistics of their update, then for its release.

Between the two exchanges the raw update stays in the client's own memory. What was reported is booked when it leaves,
so a client that drops out before its release is charged for its statistics alone; in its next round it trains anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedpriv.client.contract import Charge, Release, StaleRequest, numbers, repeated_answer
from fedpriv.client.gaussian import GaussianClient, joined_state, split_state
from fedpriv.client.memory import Answer, ClientMemory, Waiting, read_memory
from fedpriv.client.method import Traits
from fedpriv.common.messages import STATISTICS, TRAIN, Outgoing, Request, place
from fedpriv.mechanisms.noise import NoiseSource


class TwoExchangeClient(GaussianClient):
    """Statistics first (`measure`), then the release of the same update (`perturb`), whose noise may depend on what
    was reported (``reported``, by name; [] or [...] for trials).
    """

    traits: ClassVar[Traits] = Traits(exchanges=(STATISTICS, TRAIN))
    #: What this client reported in the first exchange.
    reported: Mapping[str, Tensor] = MappingProxyType({})

    def answer(self, request: Request, received: np.ndarray | None) -> Outgoing:
        """The exchange ``statistics`` trains from theta and tells the statistics; the exchange ``train`` takes no
        parameters and tells the release [d_up], with the figures of both.

        A repeated request gets the same bytes. Raises `StaleRequest` for an older one, and for a release before its
        statistics; `BudgetSpent`.
        """
        memory = read_memory(self._site().store)
        if request.exchange != STATISTICS:
            return self._second(memory, request)
        assert received is not None, "an exchange that trains brings parameters"
        return self._first(received, memory, request)

    def _first(self, theta: np.ndarray, memory: ClientMemory, request: Request) -> Outgoing:
        waiting = memory.waiting
        if repeated_answer(memory, request) is not None:
            raise StaleRequest(f"round {request.round} (attempt {request.attempt}) was answered already")
        asked = (request.round, request.attempt)
        if waiting is not None and place(*asked) <= place(waiting.round, waiting.attempt):
            if asked != (waiting.round, waiting.attempt):
                raise StaleRequest(f"round {request.round} comes after round {waiting.round} was measured")
            return self._told(waiting.tensors["statistics"])
        self.prepare(request)
        method, norms = split_state(self.load_state(memory.state))
        charges = self.statistic_charges()
        # Statistics whose release could not follow would be spent for nothing.
        self._check_budget(memory, (*charges, *self.charges(method)), request)

        trained = self.train_locally(self._start(self.opened(torch.from_numpy(theta)), memory, request), request)
        figures = numbers(trained.figures) | self.tested(trained.local, self._site().client)
        measured = self.measure(trained.sent, norms, self.noise(request, STATISTICS))
        found = [measured.statistics[name].double() for name in self.statistic_names]
        statistics = torch.stack(found) if found else torch.zeros(0, dtype=torch.float64)
        after = memory.after(
            self.dump_state(joined_state(method, measured.norms)),
            self._entries(memory, request, charges),
            memory.answer,
            self._kept(trained.local, request),
            Waiting(*asked, {"update": trained.sent, "statistics": statistics}, figures),
        )
        self._site().store.keep(after)
        return self._told(statistics)

    def _told(self, statistics: Tensor) -> Outgoing:
        named = dict(zip(self.statistic_names, statistics.tolist(), strict=True))
        return Outgoing(self._site().num_examples, statistics=named)

    def _second(self, memory: ClientMemory, request: Request) -> Outgoing:
        waiting = memory.waiting
        if (answer := repeated_answer(memory, request)) is not None:
            return self._outgoing(answer)
        if waiting is None or waiting.round != request.round:
            raise StaleRequest(f"round {request.round}: a release is asked for, but nothing was measured in this round")
        self.prepare(request)
        method, norms = split_state(self.load_state(memory.state))
        self.reported = dict(zip(self.statistic_names, waiting.tensors["statistics"], strict=True))
        charges = self.release_charges(method)
        self._check_budget(memory, charges, request)

        release = self.perturb(waiting.tensors["update"], method, self.noise(request, "release"))
        answer = Answer(request.round, request.attempt, release.value)
        after = memory.after(
            self.dump_state(joined_state(release.state, norms)),
            self._entries(memory, request, charges),
            answer,
            memory.kept,
        )
        self._site().store.keep(after)
        return self._outgoing(answer, waiting.figures | numbers(release.figures))

    def release_charges(self, state: Any) -> tuple[Charge, ...]:
        """What the release costs, now that it is known what was reported."""
        return self.charges(state)

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        """Both exchanges at once, at a C that does not move in between: what the auditor attacks."""
        method, norms = split_state(state)
        measured = self.measure(update, norms, noise)
        self.reported = measured.statistics
        release = self.perturb(update, method, noise)
        return Release(release.value, joined_state(release.state, measured.norms), release.figures, measured.statistics)
