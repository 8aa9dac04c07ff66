"""Records of what leaves a client: a release is an `Event` under a `Threat`, and a ledger line is an `Entry`.

Noise is always standard deviation (or scale) divided by the sensitivity **under the event's own adjacency**:
the option ``noise_multiplier`` (standard deviation / clip norm) is twice that under replace-one.
No heavy imports here: every client loads this module at start.
"""

from __future__ import annotations

from fedpriv.privacy.events.allocated import AllocatedGaussian
from fedpriv.privacy.events.binomial_noise import Binomial
from fedpriv.privacy.events.bits import PairedQuantisation, RandomisedResponse, Shuffled
from fedpriv.privacy.events.caps import UnitCap
from fedpriv.privacy.events.concentrated import ZCDP, GumbelTopK
from fedpriv.privacy.events.entry import EVERY_CLIENT, Entry
from fedpriv.privacy.events.event import (
    ADJACENCIES,
    BLIND_TO_COHORT,
    CLIENT_TO_SERVER,
    OBSERVERS,
    SECURE_SUM,
    UNITS,
    Event,
    Threat,
)
from fedpriv.privacy.events.gaussians import Gaussian
from fedpriv.privacy.events.integer_sums import DiscreteGaussianSum, SkellamSum
from fedpriv.privacy.events.laplace import Laplace
from fedpriv.privacy.events.pairs import ApproximateDP
from fedpriv.privacy.events.replaced_parts import ReplacedGaussian
from fedpriv.privacy.events.sampled_gaussians import FixedSizeGaussian, PoissonGaussian
from fedpriv.privacy.events.unbounded import NoBound

#: Every kind of event, by its name in a ledger.
MECHANISMS: dict[str, type[Event]] = {
    kind.mechanism: kind
    for kind in (
        Gaussian,
        Laplace,
        PoissonGaussian,
        FixedSizeGaussian,
        AllocatedGaussian,
        ReplacedGaussian,
        ZCDP,
        GumbelTopK,
        RandomisedResponse,
        UnitCap,
        PairedQuantisation,
        Binomial,
        DiscreteGaussianSum,
        SkellamSum,
        Shuffled,
        ApproximateDP,
        NoBound,
    )
}

__all__ = [
    "ADJACENCIES",
    "BLIND_TO_COHORT",
    "CLIENT_TO_SERVER",
    "EVERY_CLIENT",
    "MECHANISMS",
    "OBSERVERS",
    "SECURE_SUM",
    "UNITS",
    "ZCDP",
    "AllocatedGaussian",
    "ApproximateDP",
    "Binomial",
    "DiscreteGaussianSum",
    "Entry",
    "Event",
    "FixedSizeGaussian",
    "Gaussian",
    "GumbelTopK",
    "Laplace",
    "NoBound",
    "PairedQuantisation",
    "PoissonGaussian",
    "RandomisedResponse",
    "ReplacedGaussian",
    "Shuffled",
    "SkellamSum",
    "Threat",
    "UnitCap",
]
