"""DPFL-AGN, server half.

Jiao, Cai, Wang, Cheng, Gao (Algorithm 1): the mean of the clients' models, noise that decays when a public loss stops
falling.

The clients add the noise; the server sees each client's model after each round; it is honest about nothing that the
clients' guarantee rests on: they check the noise that it announces.

Symbols: omega -> theta, p_j -> n_j / n, v(omega) -> public_loss, rho -> decay, mu -> threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from fedpriv.common.messages import SIGMA, FloatVector, Options
from fedpriv.common.replies import Reply
from fedpriv.config.methods import DecayingOptions, ExampleLevelOptions
from fedpriv.server.round import NO_HOOKS, Hooks, Population
from fedpriv.server.strategy import FederatedStrategy

#: What clients report to the experimenter in simulation.
CLIENT_FIGURES = ("gradient_norm", "theta_clip")


class AnnouncedNoise(FederatedStrategy):
    """theta <- theta + sum p_j (theta_j - theta); sigma_t travels in every train message."""

    options: ExampleLevelOptions
    # omega_0 and the rounds are the base's.  [DPFL-AGN, Alg. 1 lines 2, 27, 28, 29]

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.sigma = self.options.noise_multiplier

    def train_options(self, server_round: int) -> Options:
        self.current.figures["sigma"] = self.sigma
        return {SIGMA: self.sigma}  # beside theta  [DPFL-AGN, Alg. 1 lines 3, 26]

    def figures(self, replies: Sequence[Reply]) -> dict[str, Any]:
        return {
            name: sum(reply.diagnostics[name] for reply in replies) / len(replies)
            for name in CLIENT_FIGURES
            if all(name in reply.diagnostics for reply in replies)
        }


class DPFLAGN(AnnouncedNoise):
    """sigma <- rho * sigma where v(theta_t) - v(theta_{t+1}) < mu, on public examples."""

    options: DecayingOptions
    needs_public_loss: ClassVar[bool] = True
    last_loss: float | None = None

    # Model aggregating process.  [DPFL-AGN, Alg. 1 line 20]
    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        assert self.hooks.public_loss is not None, "preparation.py gives every method that needs it a public loss"
        if self.last_loss is None:
            self.last_loss = self.hooks.public_loss(theta)
        moved = super().aggregate(theta, replies)  # theta + sum p_j (theta_j - theta)  [DPFL-AGN, Alg. 1 line 21]
        loss = self.hooks.public_loss(moved)
        self.reduce_noise(self.last_loss, loss)
        self.last_loss = self.current.figures["public_loss"] = loss
        return moved

    # Adaptive noise reduction.  [DPFL-AGN, Alg. 1 line 22]
    def reduce_noise(self, before: float, after: float) -> None:
        """sigma_{t+1}, from v(theta_t) and v(theta_{t+1}). A loss that is no number has not fallen."""
        if not before - after >= self.options.threshold:  # [DPFL-AGN, Alg. 1 line 23] [DPFL-AGN, eq. 11]
            self.sigma = self.options.decay * self.sigma  # [DPFL-AGN, Alg. 1 lines 24, 25] [DPFL-AGN, eq. 12]
        self.sigma = max(self.least, self.sigma)

    # --- what the repair adds ---------------------------------------------------------------------------------

    @property
    def least(self) -> float:
        """repaired: the smallest sigma that the clients accept. published: none."""
        return self.options.floor * self.options.noise_multiplier if self.options.variant == "repaired" else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"sigma": self.sigma, "last_loss": self.last_loss}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sigma, self.last_loss = state["sigma"], state["last_loss"]
