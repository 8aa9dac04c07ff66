"""The shared base of DP-FedAGS and its rivals: clients that release a perturbed accumulated gradient.

Symbols: g -> gradient (the sum over E local steps, (theta_global - theta_local)/eta), g' -> clipped, C -> clip_norm,
E -> local.steps, eta -> local.lr, DeltaS -> `sensitivity_of`, sigma C -> noise_multiplier * clip_norm, zeta -> e^-eps.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedpriv.client.base import Client
from fedpriv.client.contract import Charge, Release, Trained
from fedpriv.client.method import Traits
from fedpriv.config.gradient_methods import GradientOptions
from fedpriv.mechanisms.clipping import clip, finite_or_zero, l2_norm
from fedpriv.mechanisms.noise import NoiseSource, add_normal
from fedpriv.privacy.events import Gaussian


def printed_multiplier(epsilon: float, sensitivity: float) -> float:
    """sigma: DeltaS/eps * sqrt(2 ln(1.25/zeta)) with zeta = e^-eps."""
    return sensitivity / epsilon * math.sqrt(2 * (math.log(1.25) + epsilon))  # [DP-FedAGS, eq. 2]


def printed_epsilon(multiplier: float, sensitivity: float) -> float:
    """Inverse of `printed_multiplier`: the positive root of sigma^2 eps^2 - 2 DeltaS^2 (eps + ln 1.25) = 0."""
    if multiplier == 0:
        return math.inf
    ratio = (sensitivity / multiplier) ** 2
    return ratio + math.sqrt(ratio * ratio + 2 * ratio * math.log(1.25))


class GradientClient(Client):
    """Clip the accumulated gradient to C, perturb it (`release`), send it.

    epsilon: what one round is to cost; published: as equation 2 has it, repaired: truly, at ``claimed_delta``.
    noise_multiplier: standard deviation / C in place of epsilon. sensitivity: DeltaS of the published noise, ``clip``
    (2C) or ``per_example`` (2C/n_k: no sensitivity of anything, but the scale at which the paper's accuracies are
    plausible). The ledger counts on 2C whatever the option says.
    """

    options: GradientOptions
    traits = Traits(needs_facts=True, releases_gradient=True)
    #: Of this participation's training.
    loss: Tensor = torch.zeros((), dtype=torch.float64)

    # --- the noise's level ---------------------------------------------------------------------------------

    @property
    def clip_norm(self) -> float:
        return self.options.clip_norm

    @property
    def by_epsilon(self) -> bool:
        """Whether the noise was chosen by epsilon, and not given. cpSGD's options give trials in its place."""
        return getattr(self.options, "noise_multiplier", None) is None

    @cached_property
    def noise_multiplier(self) -> float:
        """Standard deviation / C."""
        return self.chosen_multiplier() if self.by_epsilon else self.options.noise_multiplier  # type: ignore[attr-defined,no-any-return]

    def sensitivity_of(self) -> float:
        """DeltaS of the published noise. Not what the ledger counts on, which is 2C."""
        return 2 * self.clip_norm / (1 if self.options.sensitivity == "clip" else max(1, self.facts.num_examples))

    def chosen_multiplier(self) -> float:
        """Standard deviation / C that epsilon asks for."""
        if self.variant == "published":
            return printed_multiplier(self.noise_epsilon, self.sensitivity_of())
        from fedpriv.privacy.calibration import round_multiplier  # loads the accountants

        return round_multiplier(self.options.epsilon, self.options.claimed_delta, *self.round_rho())

    @property
    def noise_epsilon(self) -> float:
        """The epsilon that goes into equation 2."""
        return self.options.epsilon

    def printed_epsilon(self) -> float:
        """What equation 2 says of this noise: epsilon itself, where the noise was chosen by it."""
        if self.variant == "published" and self.by_epsilon:
            return self.options.epsilon
        return printed_epsilon(self.noise_multiplier, self.sensitivity_of())

    def round_rho(self) -> tuple[float, float]:
        """Repaired: (rho of the Gaussian parts, rho of the others) of one round at multiplier 1."""
        return 2.0, 0.0  # (2C)^2 / (2 C^2)

    # --- the release ---------------------------------------------------------------------------------------

    def releasing(self, theta: Tensor, trained: Trained, state: Any, noise: NoiseSource) -> Release:
        """What is up for release is g = sum of the gradients of the local steps [..., d]."""
        gradient = finite_or_zero(trained.sent / -self._site().trainer.config.lr)  # [DP-FedAGS, Alg. 1 line 21]
        self.loss = torch.as_tensor(trained.figures["train_loss"], dtype=torch.float64)
        release = self.release(gradient, state, noise)
        figures = {**trained.figures, "update_norm": l2_norm(gradient)}
        return self.released(replace(trained, figures=figures), replace(release, value=self.encode(release.value)))

    def encode(self, value: Tensor) -> Tensor:
        """What is sent of a release [..., d]."""
        return value

    def clipped(self, gradient: Tensor) -> Tensor:
        """g' [..., d]."""
        return clip(gradient, self.clip_norm)  # [DP-FedAGS, Alg. 1 line 22]

    def plus_gaussian(self, values: Tensor, noise: NoiseSource) -> Tensor:
        """Coordinates of g' [...] plus N(0, sigma^2 C^2)."""
        return add_normal(values, self.noise_multiplier * self.clip_norm, noise)  # [DP-FedAGS, Alg. 1 line 26]

    # --- what it costs -------------------------------------------------------------------------------------

    def gaussian(self) -> Gaussian:
        """Two data sets move g' by at most 2C under replace-one."""
        return Gaussian(threat=self.threat, multiplier=self.noise_multiplier / 2)

    def charges(self, state: Any) -> tuple[Charge, ...]:
        return (Charge(self.gaussian()),)

    def remarks(self) -> tuple[str, ...]:
        """The printed claim's delta, and what its noise costs at a delta that means something."""
        claim = self.claim(1, self.options.claimed_delta)
        if claim is None or claim.delta <= self.options.claimed_delta:
            return ()
        from fedpriv.privacy.composition import compose  # loads the accountants

        said = f"the paper's claim is at delta = e^-epsilon = {claim.delta:.3g}, which allows nearly everything"
        if self.exact_leak() is None:
            found = compose(self.planned_events(1), self.options.claimed_delta).epsilon
            said += f": at delta {self.options.claimed_delta:g} a round costs {found:.3g}"
        return (said,)
