"""SCAFFOLD under client-level differential privacy, client half.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh: SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning, ICML 2020. M. Noble, A. Bellet, A. Dieuleveut: Differentially Private Federated Learning on
Heterogeneous Data, AISTATS 2022 (DP-SCAFFOLD).

form=local: the client adds the noise; the server sees each client's release and knows who took part; nobody needs to be
trusted. form=central: the server is trusted and adds the noise to the sum; outsiders see global models and c.

Symbols: K -> steps, eta_l -> local.lr, C -> clip_norm, sigma C -> noise_multiplier * clip_norm, c_i -> own,
c -> control, alpha -> correction, y_i - x -> -eta_l G_i, G_i -> gradient (the sum of the K corrected gradients).

Where this departs from the papers:
- Noble et al. protect single examples by noise in every local step, and clients send the change of c_i beside that of
  the model. Here the unit is the client, and one vector leaves: G_i, clipped, with DP-FedAvg's noise. By option II,
  c_i+ - c_i = G_i/K - c, so from the releases the server makes the mean of the changes, and c, by itself.
- c_i follows the clipped G_i, without its noise: so c is the mean of all c_i up to noise, as without clipping. With the
  unclipped one they would part for good; with the noisy one each c_i would hold a whole client's noise.
- alpha (c - c_i) is added, and c_i+ = G_i/K - alpha (c - c_i), which is the client's mean gradient for any alpha.
  With alpha = 1 nothing leads c back to the mean of the c_i, so the noise of all rounds adds up in what it is away from
  it; below, a share 1 - alpha of that is taken back whenever all clients have taken part once.

Why it costs what DP-FedAvg costs. Fix the randomness of all batches. The clipped G_i of a round is a function of the
client's data, of what came down (theta, c) and of c_i, which is a function of the data and of what came down earlier;
c_i never leaves. What comes down is a function of earlier releases and of what others do, whoever the server is. So
given all earlier outputs, neighbouring data sets give two vectors of norm <= C, at most 2C apart under replace-one,
whatever c was sent: the rounds are adaptively composed Gaussian releases of multiplier sigma/2. Mixing over the
batches' randomness, whose law is the same for both, raises no divergence. form=central: whether a client is drawn does
not depend on earlier outputs or on c_i (which may tell whether it was drawn earlier). So given the outputs a round is a
mixture over c_i of Poisson-sampled Gaussians with a vector of norm <= C, against one Gaussian without the client; by
joint convexity it is no worse than the worst of them. c is post-processing of the releases, in both forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.client.contract import LocalRule, Release
from fedpriv.client.gradient import NoisyGradientClient
from fedpriv.common.messages import MalformedMessage, Request
from fedpriv.config.methods import ScaffoldOptions
from fedpriv.mechanisms.noise import NoiseSource, l2_norm

#: Of the bound of c: what rounding on the way may add.
SLACK = 1e-4


@dataclass(frozen=True)
class ControlState:
    """What the client keeps between two participations."""

    own: Tensor  # [..., d] c_i


class ScaffoldClient(NoisyGradientClient):
    """DP-FedAvg's client with control variates; no printed noise, as the papers have none for whole clients."""

    options: ScaffoldOptions
    traits = replace(NoisyGradientClient.traits, State=ControlState, vectors_down=2, own_steps=True)  # theta, c
    in_rows = True
    #: c [d] of this participation; None before the first (and in an audit of the release alone): zero.
    control: Tensor | None = None

    # --- what comes down ---------------------------------------------------------------------------------

    def prepare(self, request: Request, down: Sequence[Tensor] = ()) -> None:
        """Takes c. Raises `MalformedMessage` for one that is not finite or longer than its public bound: no guarantee
        hangs on it, but c_i would be spoilt for good.
        """
        _, control = down
        most = self.options.control_norm * self.clip_norm / self.options.steps
        if not float(l2_norm(control)) <= most * (1 + SLACK):
            raise MalformedMessage(f"the server's control variate is not finite, or longer than {most:g}", "not_finite")
        self.control = control

    def local(self, state: ControlState | None) -> LocalRule:
        """alpha (c - c_i) [..., d] is added to every gradient."""
        if self.options.correction == 0:
            return LocalRule()
        assert self.control is not None, "`prepare` comes first"
        away = self.control if state is None else self.control - state.own
        return LocalRule(drift=away * self.options.correction)  # [SCAFFOLD, Alg. 1 line 10]

    # --- the release -------------------------------------------------------------------------------------

    def release(self, update: Tensor, state: ControlState | None, noise: NoiseSource) -> Release:
        own = torch.zeros_like(update) if state is None else state.own
        control = torch.zeros_like(own) if self.control is None else self.control
        mean = self.clipped(update) / self.options.steps
        moved = mean - (control - own) * self.options.correction  # [SCAFFOLD, Alg. 1 line 12]
        return replace(super().release(update, state, noise), state=ControlState(moved))
