"""Base of the client halves: a method at a site, as Flower's NumPyClient.

A method's client file says what its release is and what that costs (`release`, `charges` and the rest of
`fedpriv.client.method.Method`). The order of a participation is that of `fedpriv.client.one_path`, for all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from flwr.client import NumPyClient
from torch import Tensor

from fedpriv.client.method import Method, Traits
from fedpriv.client.one_path import Asked, Clip, Participation
from fedpriv.common.messages import ATTEMPT, ROUND, STATISTICS, TRAIN, Outgoing, Request
from fedpriv.config.methods import PersonalOptions
from fedpriv.mechanisms.step_gradients import StepGradient
from fedpriv.training.flat_model import Layers, Layout
from fedpriv.training.sequential import Training

#: Flower's class, for halves inside other people's apps.
OneNumPyClient = NumPyClient


class Client(Method, NumPyClient):
    """Base of the client halves."""

    @final
    def answer(self, request: Request, received: np.ndarray | None) -> Outgoing:
        """One exchange of a round. received: the parameters that came down (float32 [d_down]), None where none did.

        A repeated request gets the same bytes; an older one raises `StaleRequest`. Raises `BudgetSpent`.
        """
        if request.exchange not in (STATISTICS, TRAIN):
            return self.further(request)
        site = self._site()
        found = alone(self).answer([Asked((site.client,), site.store, request)], received)
        for error in found.refused.values():
            raise error
        return found.replies[site.client]

    @final
    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """`answer` in the form of Flower's NumPyClient: ``[theta]`` or nothing, and the request's round, attempt and
        options in one dictionary; returns the arrays that leave, the declared count, and figures.
        """
        options = {key: value for key, value in config.items() if key not in (ROUND, ATTEMPT)}
        request = Request(int(config[ROUND]), int(config[ATTEMPT]), options)
        found = self.answer(request, parameters[0] if parameters else None)
        arrays = [] if found.release is None else [found.release]
        if found.statistics or request.exchange == STATISTICS:
            arrays.append(np.array(list(found.statistics.values()), np.float64))
        arrays += [np.frombuffer(blob, np.uint8) for blob in found.blobs]
        return arrays, found.num_examples, dict(found.figures)


def alone(client: Method) -> Participation:
    """Of one client at its own site."""
    site = client._site()

    def train(
        clients: Sequence[int],
        rngs: Sequence[np.random.Generator],
        theta: Tensor,
        mu: float,
        drifts: Tensor | None,
        gradient: StepGradient | None,
    ) -> tuple[Tensor, Tensor]:
        start, drift = theta if theta.ndim == 1 else theta[0], None if drifts is None else drifts[0]
        (found,) = site.trainer.train_all([Training(start, site.load_data(), rngs[0], mu, drift, gradient)])
        return found.update.unsqueeze(0), torch.tensor([found.loss], dtype=torch.float64)

    clip: Clip = lambda requests: site.trainer.clipped_sums(requests)  # noqa: E731 - a trainer may have none
    return Participation(
        client, lambda _: client, lambda _: site.num_examples, train, clip, True, foreign=site.trainer.foreign
    )


class PersonalClient(Client):
    """Releases the update of the shared layers as it is (no privacy); other layers stay with the client.

    The model is an ordered list of named blocks over one flat vector [d]. Only the shared part is ever in a message;
    the rest starts at the common initial model, is trained with every participation, and stays in the client's memory.
    """

    traits = Traits(keeps_layers=True)

    @abstractmethod
    def shared_blocks(self, layout: Layout) -> slice:
        """The blocks that travel: the first or the last ones. Raises `OptionError` where none would be left."""

    def layers(self, layout: Layout, server_round: int) -> Layers:
        """The shared blocks down and up in every round; all others are kept."""
        shared, size = self.shared_blocks(layout), layout.num_parameters
        kept = slice(shared.stop, size) if shared.start == 0 else slice(0, shared.start)
        return Layers(shared, shared, kept, shared)


class LastBlocksStay(PersonalClient):
    """The last ``personal_layers`` named blocks stay local (None: two, or one of a model of two)."""

    options: PersonalOptions

    def shared_blocks(self, layout: Layout) -> slice:
        return slice(0, layout.last_blocks(self.options.personal_layers, "strategy.client.personal_layers").start)
