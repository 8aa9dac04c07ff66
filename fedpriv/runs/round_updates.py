"""What the server of a run saw of single clients: their updates, kept for attacks (`attack.keep_updates`).

d: parameters of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedpriv.client.build import make_client
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import FloatVector
from fedpriv.common.replies import Reply
from fedpriv.config.schema import Config
from fedpriv.server.round import Round

#: Observers who see every client's update by itself.
SEE_EACH = ("server", "server+members")


@dataclass(frozen=True)
class RoundUpdates:
    """One round: the model that the server sent (float32 [d]), and client -> its update (float32 [d]), in the
    direction in which the server moved the model.
    """

    before: FloatVector
    updates: Mapping[int, FloatVector]


class UpdateRecorder:
    """Keeps the updates of every ``every``-th round, the first included: a method that releases gradients gets the
    opposite sign, so that all updates are moves of the model.

    keep: called at the end of such a round with its number and what was seen.
    """

    def __init__(self, wanted: Callable[[int], bool], keep: Callable[[int, RoundUpdates], None]) -> None:
        self._wanted, self._keep = wanted, keep
        self._before: FloatVector = np.zeros(0, np.float32)
        self._seen: dict[int, FloatVector] = {}

    def heard(self, current: Round, reply: Reply) -> None:
        """A usable reply, before the server uses it."""
        if self._wanted(current.number):
            self._before = current.theta
            self._seen[reply.client] = np.asarray(reply.release, np.float32).copy()

    def ended(self, current: Round) -> None:
        """The round is over, and its theta is the new one."""
        if self._seen:
            move = current.theta.astype(np.float64) - self._before
            along = sum(float(move @ update) for update in self._seen.values())
            sign = np.float32(-1 if along < 0 else 1)
            updates = {client: sign * update for client, update in self._seen.items()}
            self._keep(current.number, RoundUpdates(self._before, updates))
        self._seen = {}


def every(rounds: int) -> Callable[[int], bool]:
    """Rounds 1, 1 + n, 1 + 2n, ..."""
    return lambda number: (number - 1) % rounds == 0


def refuse_unseen(config: Config) -> None:
    """Raises `OptionError` for a run whose server sees no single client's update, or whose machines are real."""
    if not config.attack.keep_updates:
        return
    client = make_client(config)
    why = None
    if config.dataset.name == "on_nodes":
        why = "is for simulations: a deployment keeps nothing of its clients that it does not need"
    elif client.threat.observer not in SEE_EACH:
        why = f"{config.method} protects from {client.threat.observer}, who sees no single client's update"
    elif client.traits.keeps_layers:
        why = f"the clients of {config.method} send a part of the model only"
    if why:
        raise OptionError("attack.keep_updates", "true", f"{why}; allowed: false")
