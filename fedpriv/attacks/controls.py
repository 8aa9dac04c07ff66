"""The two controls without which a result is not shown.

positive: an attack on models of the same kind, trained without noise and overfitted to few examples, must succeed.
negative: an attack on a model like the run's, but with other coins, must be at chance: neither better nor worse. Where
members and non-members differ by more than coins, classifiers see that instead of membership, and this control fails.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedpriv.attacks.metrics import Estimate, auc, balanced_accuracy
from fedpriv.attacks.subject import Scored

#: Confidence of both controls: one-sided of the positive one, two-sided of the negative one.
CONFIDENCE = 0.999


@dataclass(frozen=True)
class Control:
    """Result of a control; the error of its intervals is what `CONFIDENCE` leaves to each of their ends."""

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
    found = _measure("positive", scored, CONFIDENCE)
    return replace(found, passed=found.balanced_accuracy.low > 0.5)


def negative(scored: Scored) -> Control:
    """Failed where balanced accuracy or AUC is off chance with confidence, to either side; the two share the error
    probability.
    """
    found = _measure("negative", scored, (3 + CONFIDENCE) / 4)
    return replace(found, passed=all(one.low <= 0.5 <= one.high for one in (found.balanced_accuracy, found.auc)))


def _measure(name: str, scored: Scored, one_sided: float) -> Control:
    two_sided = 2 * one_sided - 1
    return Control(
        name,
        True,
        balanced_accuracy(scored.members, scored.others, scored.threshold, two_sided),
        auc(scored.members, scored.others, two_sided),
        len(scored.members),
        len(scored.others),
    )
