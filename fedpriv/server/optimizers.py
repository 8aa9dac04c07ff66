"""The server's optimizer: what a round's update becomes before it is added to theta.

S. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konecny, S. Kumar, H. B. McMahan: Adaptive Federated
Optimization, ICLR 2021 (adam, yogi: FedAdam, FedYogi); T.-M. H. Hsu, H. Qi, M. Brown: Measuring the Effects of
Non-Identical Data Distribution for Federated Visual Classification, 2019 (momentum: FedAvgM).

Nobody new sees anything. It costs no privacy: a step is a function of the updates that the server has anyway, of this
round and of earlier ones, and of constants. So whatever is proved of those updates, of their sum, or of the noisy sum
of a trusted server, holds for every theta that comes of them (post-processing). A server that adds noise itself has
added it before: `FederatedStrategy.move` gets nothing but what may be published.

Symbols: Delta_t -> update, eta -> lr, beta -> momentum, m_t and v_t -> first and second (float64 [d]), tau -> tau.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedpriv.config.options import MethodOptions

Floats = NDArray[np.float64]
#: strategy.server.lr where it is null. With adam and yogi every coordinate moves by about so much in a round.
USUAL_LR = {"sgd": 1.0, "momentum": 1.0, "adam": 0.01, "yogi": 0.01}

#: Of `step_by_noise`: K, and how far a message of the largest length may move the model, both of features of length
#: one. Found on held-out training pictures of CIFAR-10, by the rule in `benchmarks/choose_pictures.py`.
NOISE_LENGTH, LONGEST_STEP = 60.0, 30.0


def step_by_noise(noise: float, rounds: int | None, longest: float) -> float:
    """The length of equal steps along the noisy mean of each round, from public numbers alone: the noise of all rounds
    together moves the model by `NOISE_LENGTH`.

    With noise of ``noise`` in a mean, independent from round to round, T steps of length s add noise of s noise sqrt(T)
    (lengths in R^d, root mean squares), so s = K/(noise sqrt(T)); a message of length ``longest``, the largest there
    is, moves the model by no more than `LONGEST_STEP`.
    """
    assert rounds is not None  # of every run
    even = NOISE_LENGTH / (noise * math.sqrt(rounds)) if noise > 0 else math.inf
    return min(even, LONGEST_STEP / longest)


class Optimizer:
    """The rule of `strategy.server.optimizer` and what it keeps: of theta's whole length, where a round is about a part
    of theta that part alone moves on. steps: how many it has taken since it was made.
    """

    def __init__(self, options: MethodOptions) -> None:
        self.name = options.optimizer
        self.lr = USUAL_LR[self.name] if options.lr is None else float(options.lr)
        self.momentum, self.tau = options.momentum, options.tau
        self.betas, self.corrects = (options.beta1, options.beta2), options.bias_correction
        self.steps = 0
        self._kept: dict[str, Floats] = {}

    @property
    def plain(self) -> bool:
        """Whether theta moves by the update itself."""
        return self.name == "sgd" and self.lr == 1

    def step(self, update: Floats, part: slice, size: int) -> Floats:
        """What is added to ``part`` of a theta of ``size``, from the update of that part (float64 [d_part])."""
        self.steps += 1
        if self.name == "sgd":
            return self.lr * update
        if self.name == "momentum":
            velocity = self._state("first", 0.0, size)[part]
            velocity[:] = self.momentum * velocity + update
            return self.lr * velocity
        beta1, beta2 = self.betas
        first = self._state("first", 0.0, size)[part]
        second = self._state("second", 0.0 if self.corrects else self.tau**2, size)[part]
        first[:] = beta1 * first + (1 - beta1) * update  # [FedOpt, Alg. 2]
        squared = update * update
        if self.name == "adam":
            second[:] = beta2 * second + (1 - beta2) * squared
        else:
            second -= (1 - beta2) * squared * np.sign(second - squared)
        lr = self.lr
        if self.corrects:
            done = self._state("steps", 0.0, 1)
            done += 1
            # D. Kingma, J. Ba: Adam. ICLR 2015, end of section 2
            lr *= math.sqrt(1 - beta2 ** done[0]) / (1 - beta1 ** done[0])
        return lr * first / (np.sqrt(second) + self.tau)

    def vectors(self) -> dict[str, Floats]:
        """What a checkpoint must hold: first, second and steps, as far as the rule has them."""
        return {f"optimizer.{name}": kept for name, kept in self._kept.items()}

    def load_vectors(self, vectors: Mapping[str, Floats]) -> None:
        """Takes back what `vectors` gave."""
        for name in ("first", "second", "steps"):
            if (kept := vectors.get(f"optimizer.{name}")) is not None:
                self._kept[name] = np.array(kept, np.float64)

    def _state(self, name: str, start: float, size: int) -> Floats:
        if name not in self._kept:
            self._kept[name] = np.full(size, start, np.float64)
        return self._kept[name]
