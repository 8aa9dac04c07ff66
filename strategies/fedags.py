"""DP-FedAGS, server half (Zhang, Mao, Tu, He, Ping, Wu): aggregation weighted by the clients' losses.

The client adds the noise; the server sees each client's gradient, the training loss if it is sent, and knows who took
part; nobody needs to be trusted.

Symbols: gamma_k -> weights, L_k -> losses, n_k -> num_examples, T -> rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpriv.common.messages import TRAIN_LOSS, MalformedMessage
from fedpriv.common.replies import Reply
from fedpriv.config.methods import FedAGSOptions
from fedpriv.mechanisms.loss_weights import loss_weights as weights_by_loss
from fedpriv.mechanisms.significance import scheduled_count
from fedpriv.server.gradient import SelectingServer
from fedpriv.server.round import NO_HOOKS, Hooks, Population


class FedAGS(SelectingServer):
    """theta <- theta - eta sum_k gamma_k g_k. Without losses gamma_k = n_k/n."""

    options: FedAGSOptions

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        chosen = self.options.loss_weights
        self.by_loss = self.options.variant == "published" if chosen is None else chosen
        self.statistics = (TRAIN_LOSS,) if self.by_loss else ()
        self.public_weights = not self.by_loss

    def count(self, dimension: int, server_round: int) -> int:
        return scheduled_count(server_round, self.options.rounds, dimension, self.options.threshold)

    def check(self, reply: Reply) -> None:
        """A loss is at least 0 (and finite: every statistic is)."""
        if self.by_loss and reply.statistics[TRAIN_LOSS] < 0:
            raise MalformedMessage(f"metrics.{TRAIN_LOSS}: a loss of {reply.statistics[TRAIN_LOSS]} is below 0")

    def weights(self, replies: Sequence[Reply]) -> list[float]:
        if not self.by_loss:
            return super().weights(replies)
        found = weights_by_loss(
            [reply.num_examples for reply in replies], [reply.statistics[TRAIN_LOSS] for reply in replies]
        )
        self.current.figures["loss_weights"] = [round(weight, 6) for weight in found]
        return found
