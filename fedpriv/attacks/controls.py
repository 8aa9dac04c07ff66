"""The two controls without which a result is not shown.

positive: an attack on models of the same kind, trained without noise and overfitted to few pictures, must succeed.
negative: an attack on a model that was trained on other data must not do better than chance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedpriv.attacks.metrics import Estimate, auc, balanced_accuracy
from fedpriv.attacks.subject import Scored

#: One-sided confidence of both controls.
CONFIDENCE = 0.999


@dataclass(frozen=True)
class Control:
    """Result of a control; the lower ends of its intervals hold with `CONFIDENCE`."""

    name: str
    passed: bool
    balanced_accuracy: Estimate
    auc: Estimate
    members: int
    others: int

    def __str__(self) -> str:
        figures = (
            f"balanced accuracy {self.balanced_accuracy.value:.3f}, lower {100 * CONFIDENCE:g} % bound "
            f"{self.balanced_accuracy.low:.3f}; AUC {self.auc.value:.3f}, lower bound {self.auc.low:.3f}; "
            f"{self.members} members, {self.others} non-members"
        )
        return f"{self.name} control {'passed' if self.passed else 'failed'}: {figures}"


def positive(scored: Scored) -> Control:
    """Passed where balanced accuracy is above chance with confidence."""
    found = _measure("positive", scored, CONFIDENCE)
    return replace(found, passed=found.balanced_accuracy.low > 0.5)


def negative(scored: Scored) -> Control:
    """Failed where balanced accuracy or AUC is above chance with confidence; the two share the error probability."""
    found = _measure("negative", scored, (1 + CONFIDENCE) / 2)
    above = max(found.balanced_accuracy.low, found.auc.low)
    return replace(found, passed=above <= 0.5)


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
