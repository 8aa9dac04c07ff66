"""`features.dims=auto`: how many dimensions of a map a private run can afford, by a formula.

n messages, each the direction of a vector in R^d with d = k (C - 1) for k dimensions and C classes, give a mean whose
error is about d/(n x) beside a signal of length one. x(epsilon) is PrivUnit's: d over the second moment of an estimate,
0.158, 0.619, 2.30 and 7.52 at epsilon 1, 2, 4 and 8. The further directions of the map tell less and less, so k is to
grow more slowly than n x; k (C - 1) = 14.4 sqrt(n x) was found on held-out training pictures of MNIST at epsilon 1 to 8
and 100 to 10,000 clients, and is flat: half or twice as many cost less than a point. The pink map knows less of such
pictures, and was found to need 2.5 times as many. Here

    x = 0.159 epsilon^2 / (1 + epsilon / 23)

stands for the exact function, within 5 % from 0.1 to 8 (and within 16 % at 50), so that nothing heavy is loaded where
options are checked.
"""

from __future__ import annotations

import math

from fedpriv.common.errors import OptionError
from fedpriv.config.data_schema import KNOWN_SETS
from fedpriv.config.participation import passes_needed
from fedpriv.config.schema import Config

#: Fewest and most dimensions; digits of 8 x 8 pixels have 192 features.
FEWEST, MOST, MOST_OF_DIGITS = 5, 400, 150
#: Where no epsilon is known before the run.
USUAL = 150
#: k (C - 1)/sqrt(n x), by features.map.
_FACTORS = {"strokes": 14.4, "pink": 36.0}


def dims_for(epsilon: float, messages: int, classes: int, features_map: str = "strokes") -> int:
    """k for so many messages at epsilon each."""
    x = 0.159 * epsilon**2 / (1 + epsilon / 23)
    return max(FEWEST, min(MOST, round(_FACTORS[features_map] * math.sqrt(messages * x) / (classes - 1))))


def with_dims(config: Config) -> Config:
    """The configuration with a number in place of `features.dims=auto`. Raises `OptionError` where none follows."""
    if config.features.dims != "auto":
        return config
    if config.features.map not in ("none", *_FACTORS):
        words = f"was found for features.map={' and '.join(_FACTORS)}; allowed with features.map={config.features.map}"
        raise OptionError("features.dims", "auto", f"{words}: a number")
    found = USUAL if config.features.map == "none" else _found(config)
    return config.model_copy(update={"features": config.features.model_copy(update={"dims": found})})


def _found(config: Config) -> int:
    messages = config.num_rounds * config.clients_per_round
    times = passes_needed(config.num_rounds, config.num_clients, config.clients_asked)
    target, epsilon = config.privacy.target_epsilon, getattr(config.strategy.options, "epsilon", None)
    if target is not None:
        epsilon = target / times
    if epsilon is None:
        return USUAL
    dataset = config.dataset
    classes = len(dataset.classes) or KNOWN_SETS.get(dataset.name, (0, 0))[1]
    if classes < 2:
        words = f"dataset={dataset.name}: the number of classes is not known before it is read; allowed: a number"
        raise OptionError("features.dims", "auto", words)
    most = MOST_OF_DIGITS if dataset.name == "digits" else MOST
    return min(dims_for(epsilon, messages, classes, config.features.map), most)
