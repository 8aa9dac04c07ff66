"""DP-FedAGS, server half (Zhang, Mao, Tu, He, Ping, Wu): aggregation weighted by the clients' losses.

The client adds the noise; the server sees each client's gradient, the training loss if it is sent, and knows who took
part; nobody needs to be trusted.

Symbols: gamma_k -> weights, L_k -> losses, n_k -> num_examples, T -> rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedpriv.common.messages import TRAIN_LOSS, FloatVector, MalformedMessage
from fedpriv.common.replies import Reply
from fedpriv.config.methods import FedAGSOptions
from fedpriv.server.gradient import SelectingServer
from fedpriv.server.round import NO_HOOKS, Hooks, Population


class FedAGS(SelectingServer):
    """theta <- theta - eta sum_k gamma_k g_k. Without losses gamma_k = n_k/n."""

    options: FedAGSOptions

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.by_loss = self.options.weighs_by_loss
        self.statistics = (TRAIN_LOSS,) if self.by_loss else ()
        self.public_weights = not self.by_loss

    # M, the rounds, and what clients are asked in each.  [DP-FedAGS, Alg. 1 lines 3 to 8, 13]
    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        gradient = self.mean(theta.size, replies)  # sum gamma_k g_k  [DP-FedAGS, Alg. 1 line 11] [DP-FedAGS, eq. 3]
        return self.move(theta, -(self.options.learning_rate * gradient))  # [DP-FedAGS, Alg. 1 line 12]

    def check(self, reply: Reply) -> None:
        """A loss is at least 0 (and finite: every statistic is)."""
        if self.by_loss and reply.statistics[TRAIN_LOSS] < 0:
            raise MalformedMessage(f"metrics.{TRAIN_LOSS}: a loss of {reply.statistics[TRAIN_LOSS]} is below 0")

    def weights(self, replies: Sequence[Reply]) -> list[float]:
        if not self.by_loss:
            return super().weights(replies)
        found = self.weights_by_loss(
            [reply.num_examples for reply in replies], [reply.statistics[TRAIN_LOSS] for reply in replies]
        )
        self.current.figures["loss_weights"] = [round(weight, 6) for weight in found]
        return found

    @staticmethod
    def weights_by_loss(examples: Sequence[int], losses: Sequence[float]) -> list[float]:
        """gamma_k = (n_k L + n L_k) / (2 n L), with n and L the sums; they sum to 1.

        Where all losses are zero the formula is undefined: n_k/n is used. Raises ValueError for a negative or infinite
        loss, NaN, a negative count, no examples at all, or lists of different length.
        """
        if len(examples) != len(losses):
            raise ValueError(f"{len(examples)} counts of examples, {len(losses)} losses")
        for loss in losses:
            if not (math.isfinite(loss) and loss >= 0):
                raise ValueError(f"a loss of {loss}: must be a finite number of at least 0")
        if min(examples, default=0) < 0 or sum(examples) == 0:
            raise ValueError(f"counts of examples {list(examples)}: must be at least 0 and not all 0")
        total = sum(examples)  # n  [DP-FedAGS, Alg. 1 line 9]
        largest = max(losses)
        if largest == 0:
            return [count / total for count in examples]
        scaled = [loss / largest for loss in losses]  # their sum stays finite
        loss_sum = sum(scaled)  # L  [DP-FedAGS, Alg. 1 line 9]
        shares = [(n_k / total, loss / loss_sum) for n_k, loss in zip(examples, scaled, strict=True)]
        # (n_k L + n L_k) / (2 n L)  [DP-FedAGS, eq. 37]
        return [(by_count + by_loss) / 2 for by_count, by_loss in shares]  # [DP-FedAGS, Alg. 1 line 10]

    # --- the repair: clients send the scheduled coordinates alone ---------------------------------------------

    def count(self, dimension: int, server_round: int) -> int:
        """As a client counts (equation 35): d - k_t + 1 from the k_t-th smallest on, or k_t from the largest on."""
        rank = min(-(-server_round * dimension // self.options.rounds), -(-9 * dimension // 10))
        return rank if self.options.threshold == "text" else dimension - rank + 1
