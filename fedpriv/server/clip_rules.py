"""How the server moves the clip norm C from round to round: one small class per rule, and the server half that uses it.

A rule sees what the clients sent for it (`fedpriv.client.clip_statistics`) and nothing else; every C that it announces
is post-processing of that, so nobody needs to be trusted: the client adds the noise (published ADP-FL excepted, which
trusts a clipping server). Clients accept a C between two public bounds only, so it is kept there.

What the clients measured in a round decides the C of the next one: the statistic travels beside the release. ADP-FL,
whose rule is in `strategies/adpfl.py`, has an exchange of its own for it, before the release of the same round.

Symbols: C^t -> clip_norm, C^0 -> first, eta_C -> clip_lr, rho -> decay, B -> most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedpriv.common.messages import CLIP_BIT, CLIP_NORM, FloatVector, Options
from fedpriv.common.replies import Reply, Reported
from fedpriv.config.halves import locate
from fedpriv.config.methods import ClippingOptions
from fedpriv.mechanisms.clip_thresholds import geometric, quantile_step
from fedpriv.server.round import NO_HOOKS, Hooks, Population
from fedpriv.server.strategy import FederatedStrategy


class ClipRule:
    """Base, and the rule ``fixed``: C never moves, and nothing is announced. first: C of round 1."""

    #: What clients must send for it.
    statistics: tuple[str, ...] = ()
    moves = False

    def __init__(self, first: float, floor: float = 0.0, most: float = math.inf) -> None:
        self.first, self.floor, self.most = first, floor, most
        self.clip_norm = first
        self.floor_held = False  # whether the rule wanted less than the floor

    def begin(self, server_round: int) -> None:
        """Before the round's C is announced."""

    def learn(self, replies: Sequence[Reported]) -> dict[str, Any]:
        """After a round: the next C, and the figures that it came from."""
        return {}

    def set(self, wanted: float) -> None:
        self.floor_held = wanted < self.floor
        self.clip_norm = min(self.most, max(self.floor, wanted))

    def state_dict(self) -> dict[str, Any]:
        return {"clip_norm": self.clip_norm, "floor_held": self.floor_held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.clip_norm, self.floor_held = state["clip_norm"], state["floor_held"]


class Quantile(ClipRule):
    """C follows a quantile of the clients' norms, by their noisy bits 1[norm <= C]."""

    statistics = (CLIP_BIT,)
    moves = True

    def __init__(self, first: float, floor: float, most: float, *, clip_lr: float, target: float) -> None:
        super().__init__(first, floor, most)
        self.clip_lr, self.target = clip_lr, target

    def learn(self, replies: Sequence[Reported]) -> dict[str, Any]:
        return self.follow(math.fsum(reply.statistics[CLIP_BIT] / len(replies) for reply in replies))

    def follow(self, share_within: float) -> dict[str, Any]:
        """The next C, from a noisy share of norms that lie within this one; and that share, for the round's figures."""
        self.set(quantile_step(self.clip_norm, share_within, self.clip_lr, self.target))
        return {"share_within_clip": share_within}


class Geometric(ClipRule):
    """C^t = C^0 rho^t. It counts rounds, not the replies in them."""

    moves = True

    def __init__(self, first: float, floor: float, most: float, *, decay: float) -> None:
        super().__init__(first, floor, most)
        self.decay = decay

    def begin(self, server_round: int) -> None:
        self.set(geometric(self.first, self.decay, server_round - 1))


def make_rule(options: ClippingOptions) -> ClipRule:
    """The rule of `strategy.server.clipping`: fixed | quantile | geometric | adp."""
    public = (options.clip_norm, options.floor, options.norm_bound)
    if options.clipping == "quantile":
        return Quantile(*public, clip_lr=options.clip_lr, target=options.target_quantile)
    if options.clipping == "geometric":
        return Geometric(*public, decay=options.decay)
    if options.clipping == "adp":
        name = "PublishedWindow" if options.variant == "published" else "AdaptiveWindow"
        rule: ClipRule = locate(f"strategies.adpfl.{name}", "strategy.server.clipping")(*public, window=options.window)
        return rule
    return ClipRule(options.clip_norm)


class ClippingServer(FederatedStrategy):
    """theta <- theta + mean of the releases; C^t travels in every train message, unless it is fixed."""

    options: ClippingOptions

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.rule = make_rule(self.options)
        self.statistics = self.rule.statistics

    def train_options(self, server_round: int) -> Options:
        options = super().train_options(server_round)
        if not self.rule.moves:
            return options
        self.rule.begin(server_round)
        self.current.figures |= {"clip_norm": self.rule.clip_norm, "clip_floor_held": self.rule.floor_held}
        return options | {CLIP_NORM: self.rule.clip_norm}

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        moved = super().aggregate(theta, replies)
        self.current.figures |= self.rule.learn(self.reported(replies))
        return moved

    def reported(self, replies: Sequence[Reply]) -> Sequence[Reported]:
        """What the rule learns of a round."""
        return replies

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | ({"clipping": self.rule.state_dict()} if self.rule.moves else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.rule.moves:
            self.rule.load_state_dict(state["clipping"])
