"""The two controls without which a result is not shown.

positive: an attack on models of the same kind, trained without noise and overfitted to few examples, must succeed.
negative: an attack on a model like the run's, but with other coins, must be at chance: neither better nor worse. Where
members and non-members differ by more than coins, classifiers see that instead of membership, and this control fails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, rankdata

from fedpriv.attacks.metrics import Estimate, Scores, auc, balanced_accuracy
from fedpriv.attacks.subject import Scored

#: Confidence of both controls: one-sided of the positive one, two-sided of the negative one.
CONFIDENCE = 0.999

#: A weighted sum of independent fair signs exceeds x standard deviations at most so much more often than a Gaussian
#: does (V. K. Bentkus and D. Dzindzalieta, "A tight Gaussian bound for weighted sums of Rademacher random variables",
#: Bernoulli 2015).
SIGNS = 1 / (4 * float(norm.sf(math.sqrt(2))))


@dataclass(frozen=True)
class Control:
    """Result of a control. Intervals of the positive one leave what `CONFIDENCE` does to each end; the negative one's
    four ends share it, and are what coins alone may move its figures by.
    """

    name: str
    passed: bool
    balanced_accuracy: Estimate
    auc: Estimate
    members: int
    others: int

    def __str__(self) -> str:
        figures = (
            f"balanced accuracy {self.balanced_accuracy}, AUC {self.auc} ({100 * CONFIDENCE:g} % intervals); "
            f"{self.members} members, {self.others} non-members"
        )
        return f"{self.name} control {'passed' if self.passed else 'failed'}: {figures}"


def positive(scored: Scored) -> Control:
    """Passed where balanced accuracy is above chance with confidence."""
    two_sided = 2 * CONFIDENCE - 1
    accuracy = balanced_accuracy(scored.members, scored.others, scored.threshold, two_sided)
    area = auc(scored.members, scored.others, two_sided)
    return _control("positive", accuracy.low > 0.5, accuracy, area, scored)


def negative(scored: Scored) -> Control:
    """Failed where balanced accuracy or AUC is off chance with confidence, to either side; the two share the error
    probability.

    Fair coins, of which the model knows nothing, say which of each pair's scores is the member's. Turned, a coin moves
    balanced accuracy by one pair's part and AUC by the difference of two ranks. So given the scores both are 1/2 and a
    weighted sum of signs. Intervals of independent scores would be too short: the model was trained on one example of
    every pair, and where it leaks, the two scores of a pair go apart.
    """
    count = len(scored.members)
    above = [(scores > scored.threshold).astype(float) for scores in (scored.members, scored.others)]
    ranks = rankdata(np.concatenate([scored.members, scored.others]))
    figures = [
        _of_signs((above[0] - above[1]) / (2 * count)),
        _of_signs((ranks[:count] - ranks[count:]) / (2 * count**2)),
    ]
    return _control("negative", all(one.low <= 0.5 <= one.high for one in figures), figures[0], figures[1], scored)


def _of_signs(parts: Scores) -> Estimate:
    """1/2 + sum(parts) [pairs], and what it may be off 1/2 by if each part's sign is a fair coin."""
    value = 0.5 + float(parts.sum())
    reach = float(norm.isf((1 - CONFIDENCE) / 4 / SIGNS)) * float(np.linalg.norm(parts))
    return Estimate(value, max(0.0, value - reach), min(1.0, value + reach))


def _control(name: str, passed: bool, accuracy: Estimate, area: Estimate, scored: Scored) -> Control:
    return Control(name, passed, accuracy, area, len(scored.members), len(scored.others))
