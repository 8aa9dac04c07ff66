"""Server halves that announce the round's noise: constant, or lowered when a public loss stops falling (ANR)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from fedpriv.common.messages import SIGMA, FloatVector, Options
from fedpriv.common.replies import Reply
from fedpriv.config.methods import DecayingOptions, ExampleLevelOptions
from fedpriv.mechanisms.noise_decay import next_sigma
from fedpriv.server.round import NO_HOOKS, Hooks, Population
from fedpriv.server.strategy import FederatedStrategy

#: What clients report to the experimenter in simulation.
CLIENT_FIGURES = ("gradient_norm", "theta_clip")


class AnnouncedNoise(FederatedStrategy):
    """theta <- theta + sum p_j (theta_j - theta); sigma_t travels in every train message."""

    options: ExampleLevelOptions

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.sigma = self.options.noise_multiplier

    def train_options(self, server_round: int) -> Options:
        self.current.figures["sigma"] = self.sigma
        return {SIGMA: self.sigma}

    def figures(self, replies: Sequence[Reply]) -> dict[str, Any]:
        return {
            name: sum(reply.diagnostics[name] for reply in replies) / len(replies)
            for name in CLIENT_FIGURES
            if all(name in reply.diagnostics for reply in replies)
        }


class DecayingNoiseServer(AnnouncedNoise):
    """After each round the server holds the loss v(theta) on public examples against the last one.

    decay: rho; threshold: mu; floor: smallest sigma_t / sigma_0 that the clients accept, None: as far as it goes.
    """

    options: DecayingOptions
    needs_public_loss: ClassVar[bool] = True
    last_loss: float | None = None

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.least = self.options.floor * self.sigma if self.options.variant == "repaired" else 0.0

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        public_loss, options = self.hooks.public_loss, self.options
        assert public_loss is not None, "preparation.py gives every method that needs it a public loss"
        if self.last_loss is None:
            self.last_loss = public_loss(theta)
        moved = super().aggregate(theta, replies)
        loss = public_loss(moved)
        self.current.figures |= {"public_loss": loss}
        self.sigma = max(self.least, next_sigma(self.sigma, self.last_loss, loss, options.decay, options.threshold))
        self.last_loss = loss
        return moved

    def state_dict(self) -> dict[str, Any]:
        return {"sigma": self.sigma, "last_loss": self.last_loss}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sigma, self.last_loss = state["sigma"], state["last_loss"]
