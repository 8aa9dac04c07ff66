"""The shared base of clients that are asked twice in a round: for statistics of their update, then for its release.

Between the two exchanges the raw update stays in the client's own memory. What was reported is booked when it leaves,
so a client that drops out before its release is charged for its statistics alone; in its next round it trains anew.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedpriv.client.contract import Charge, Release, Request, StaleRequest, arrays_of, read_request, repeated_answer
from fedpriv.client.gaussian import GaussianClient, joined_state, split_state
from fedpriv.client.memory import Answer, ClientMemory, Waiting, read_memory
from fedpriv.common.messages import EXCHANGE, STATISTICS, TRAIN, place
from fedpriv.mechanisms.noise import NoiseSource


class TwoExchangeClient(GaussianClient):
    """Statistics first (`measure`), then the release of the same update (`release`), whose noise may depend on what
    was reported (``reported``, by name; [] or [...] for trials).
    """

    exchanges: ClassVar[tuple[str, ...]] = (STATISTICS, TRAIN)
    trains_in: ClassVar[str] = STATISTICS
    #: What this client reported in the first exchange.
    reported: dict[str, Tensor]

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """The exchange ``statistics`` trains from ``[theta]`` and returns ``[statistics]`` (float64 [k]); the exchange
        ``train`` takes no parameters and returns ``[release]`` (float32 [d_up]) with the diagnostics of both.

        A repeated request gets the same bytes. Raises `StaleRequest` for an older one, and for a release before its
        statistics; `BudgetSpent`.
        """
        request = read_request(config)
        memory = read_memory(self._site().store)
        if request.options.get(EXCHANGE) == STATISTICS:
            return self._report(parameters[0], memory, request)
        return self._release(memory, request)

    def _report(
        self, theta: np.ndarray, memory: ClientMemory, request: Request
    ) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        site, waiting = self._site(), memory.waiting
        if repeated_answer(memory, request) is not None:
            raise StaleRequest(f"round {request.round} (attempt {request.attempt}) was answered already")
        asked = (request.round, request.attempt)
        if waiting is not None and place(*asked) <= place(waiting.round, waiting.attempt):
            if asked != (waiting.round, waiting.attempt):
                raise StaleRequest(f"round {request.round} comes after round {waiting.round} was measured")
            return [waiting.tensors["statistics"].numpy()], site.num_examples, {}
        self.prepare(request)
        method, norms = split_state(self.load_state(memory.state))
        charges = self.statistic_charges()
        # Statistics whose release could not follow would be spent for nothing.
        self._check_budget(memory, (*charges, *self.charges(method)))

        trained = self.train_locally(self._start(theta, memory, request), request)
        figures = trained.figures | self._tested(trained.local)
        measured = self.measure(trained.sent, norms, self._noise(request, STATISTICS))
        found = [measured.statistics[name].double() for name in self.statistic_names]
        statistics = torch.stack(found) if found else torch.zeros(0, dtype=torch.float64)
        after = memory.after(
            self.dump_state(joined_state(method, measured.norms)),
            self._entries(memory, request, charges),
            memory.answer,
            self._kept(trained.local, request),
            Waiting(*asked, {"update": trained.sent, "statistics": statistics}, figures),
        )
        site.store.write(after.to_bytes())
        return [statistics.numpy()], site.num_examples, {}

    def _release(self, memory: ClientMemory, request: Request) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        site, waiting = self._site(), memory.waiting
        if (answer := repeated_answer(memory, request)) is not None:
            return arrays_of(answer), site.num_examples, {}
        if waiting is None or waiting.round != request.round:
            raise StaleRequest(f"round {request.round}: a release is asked for, but nothing was measured in this round")
        self.prepare(request)
        method, norms = split_state(self.load_state(memory.state))
        self.reported = dict(zip(self.statistic_names, waiting.tensors["statistics"], strict=True))
        charges = self.release_charges(method)
        self._check_budget(memory, charges)

        release = self.release(waiting.tensors["update"], method, self._noise(request, "release"))
        answer = Answer(request.round, request.attempt, release.value)
        after = memory.after(
            self.dump_state(joined_state(release.state, norms)),
            self._entries(memory, request, charges),
            answer,
            memory.kept,
        )
        site.store.write(after.to_bytes())
        return arrays_of(answer), site.num_examples, waiting.figures | release.figures

    def release_charges(self, state: Any) -> tuple[Charge, ...]:
        """What the release costs, now that it is known what was reported."""
        return self.charges(state)

    def respond(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        """Both exchanges at once, at a C that does not move in between: what the auditor attacks."""
        method, norms = split_state(state)
        measured = self.measure(update, norms, noise)
        self.reported = measured.statistics
        release = self.release(update, method, noise)
        return Release(release.value, joined_state(release.state, measured.norms), release.figures, measured.statistics)
