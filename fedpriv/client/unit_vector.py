"""Clients that release the direction of a vector through a mechanism for unit vectors: release, price, claim, audit.

What each mechanism sends and costs: `fedpriv.mechanisms.unit_vectors`; what floating point costs:
`fedpriv.mechanisms.privunit`. No length leaves the client, so there is nothing to clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor

from fedpriv.client.base import Client
from fedpriv.client.contract import Charge, Release, RunFacts
from fedpriv.client.method import Method, Traits, on_all_axes
from fedpriv.client.secure_sum import ONE_NOISE, SummedGaussians
from fedpriv.common.errors import OptionError
from fedpriv.config.methods import UnitOptions
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.mechanisms.privunit import direction
from fedpriv.mechanisms.unit_cap import LARGEST_EPSILON
from fedpriv.mechanisms.unit_vectors import GaussianUnit, UnitMechanism, unit_mechanism
from fedpriv.privacy import claimed
from fedpriv.privacy.events import Event, Gaussian, UnitCap
from fedpriv.privacy.gaussian_dp import gaussian_mu

#: Largest epsilon against the server that is looked for where only a sum has to meet a target.
MOST_OF_GAUSSIAN = 1e4
NOT_GAUSSIAN = "a sum hides no more of what is not Gaussian; allowed: strategy.client.mechanism=gaussian"
_AUDIT = ("audit",)  # addresses the auditor's public projection


class UnitVectorClient(SummedGaussians, Client):
    """Base of the client halves that release directions.

    epsilon: of one release; claimed_delta: its delta, of the Gaussian alone. bits: of sqkr, None: the best.
    Gaussians add up in a secure sum: every direction has a length of one, so that another data set moves the sum by at
    most 2, and all noises are of one size (`Gaussian.in_sum`).
    """

    options: UnitOptions
    #: PrivUnit computes otherwise in few dimensions, and projections need more of them than they keep.
    traits = Traits(needs_facts=True, alike_at_any_dimension=False, why_no_sum=ONE_NOISE)

    def __init__(self, options: Any, run: RunFacts) -> None:
        super().__init__(options, run)
        if not isinstance(self.mechanism, GaussianUnit):  # an epsilon that it cannot have is refused before the run
            self.traits = replace(self.traits, why_no_sum=NOT_GAUSSIAN)

    @cached_property
    def mechanism(self) -> UnitMechanism:
        return self.mechanism_for(max(1, self.facts.num_parameters))

    def mechanism_for(self, dimension: int) -> UnitMechanism:
        """Raises OptionError for an epsilon that this mechanism cannot have."""
        asked = self.options
        std = 2 / gaussian_mu(asked.epsilon, asked.claimed_delta) if asked.mechanism == "gaussian" else 0.0
        try:
            return unit_mechanism(asked.mechanism, dimension, asked.epsilon, asked.projections, asked.bits, std)
        except OptionError as error:
            raise OptionError(f"strategy.client.{error.option}", error.value, error.allowed) from None

    # --- the release ---------------------------------------------------------------------------------------

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        """What is sent for updates [..., d]: numbers [..., k], or sqkr's bytes."""
        site = self._site()
        keys = [(site.seed, client, self.round) for client in site.clients or (site.client,)]
        if noise.each is None:
            sent = self.mechanism.release(update, keys[0], noise)
        else:
            sent = self.mechanism.release_each(update, keys, noise)
        figures = {"clipped_norm": 1.0, "noise_norm": math.sqrt(max(0.0, self.mechanism.second_moment - 1))}
        return Release(sent, None, figures)

    def release_bytes(self, size: int, server_round: int = 1) -> int:
        mechanism = self.mechanism_for(size)
        return mechanism.width * mechanism.dtype.itemsize

    # --- what it costs -------------------------------------------------------------------------------------

    def event(self) -> Event:
        """Two data sets give any two unit vectors: 2 apart for the Gaussian; opposite caps for the others."""
        if isinstance(self.mechanism, GaussianUnit):
            return Gaussian(threat=self.threat, multiplier=self.mechanism.std / 2)
        law = self.mechanism.law
        assert law is not None
        return UnitCap(threat=self.threat, epsilon=law.epsilon, inside=law.inside, delta=law.delta)

    def charges(self, state: Any) -> tuple[Charge, ...]:
        own = self.event()
        return Charge(own), *(self.summed(own) if isinstance(own, Gaussian) else ())

    def claim(self, participations: int, delta: float) -> claimed.Claim:
        law = self.mechanism.law
        return claimed.unit_vector(
            self.options.epsilon, self.options.claimed_delta if law is None else law.delta, law is not None
        )

    @classmethod
    def chosen_for(
        cls,
        target: float,
        delta: float,
        participations: int,
        make: Callable[..., Method],
        threat: Any = None,
    ) -> dict[str, float]:
        """The largest epsilon of a release found that meets the target: at least target/participations."""
        from fedpriv.privacy.calibration import calibrate  # loads the accountants
        from fedpriv.privacy.composition import compose

        gaussian = isinstance(make().mechanism, GaussianUnit)  # type: ignore[attr-defined]
        most = MOST_OF_GAUSSIAN if gaussian else LARGEST_EPSILON

        def epsilon(noise: float) -> float:
            return min(1 / noise, most)

        def events(noise: float) -> list[Event]:
            return make(epsilon=epsilon(noise)).planned_events(participations, threat)

        found = epsilon(calibrate(events, target, delta, 1e-3).noise_multiplier)
        plain = min(target / max(1, participations), most)
        keeps = plain > found and compose(events(1 / plain), delta).epsilon <= target
        return {"epsilon": plain if keeps else found}

    # --- what the auditor tries ------------------------------------------------------------------------------

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """What is sent [trials, numbers], and <estimate, u> [trials] for the direction u: the worst event is that u's
        cap, or its symbol, came out.
        """
        mechanism = self.mechanism_for(shape[1])
        sent = mechanism.release(on_all_axes(length, shape, self.audit_axes), _AUDIT, noise)
        unit = direction(on_all_axes(1.0, (1, shape[1]), self.audit_axes))[0]
        along = mechanism.decode(sent, _AUDIT).double() @ unit
        return Release(sent.float(), state, statistics={"along": along.float()})
