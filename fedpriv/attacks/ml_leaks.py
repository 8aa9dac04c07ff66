"""ML-Leaks, adversary 1: Salem, Zhang, Humbert, Berrang, Fritz and Backes, "ML-Leaks: Model and Data Independent
Membership Inference Attacks and Defenses on Machine Learning Models" (NDSS 2019).

The attacker: sees only the posteriors of the final model, and trains one shadow model like it on its own pictures.
Features: the three largest posteriors, sorted, as log(p / (1 - p)).
"""

from __future__ import annotations

import numpy as np

from fedpriv.attacks.classifier import Features, learn
from fedpriv.attacks.subject import Scored, Subject
from fedpriv.attacks.targets import Rows, Targets, refuse_overlap
from fedpriv.attacks.view import View, sorted_log_posteriors
from fedpriv.common.vectors import FloatVector

#: Number of posteriors used; all of them where there are fewer classes.
LARGEST = 3


def attack(view: View, subject: Subject, targets: Targets) -> Scored:
    """Trained on the first shadow model: its own rows are members, as many other spare rows are non-members."""
    shadow = subject.shadows[0]
    refuse_overlap("the shadow model's pictures", shadow.rows, "the evaluated pictures", targets.evaluated.rows)
    others = spread(targets.spare[~np.isin(targets.spare, shadow.rows)], len(shadow.rows))

    def features(theta: FloatVector, rows: Rows) -> Features:
        return sorted_log_posteriors(view.logits(theta, rows), LARGEST)

    inside, outside = features(shadow.theta, spread(shadow.rows, len(others))), features(shadow.theta, others)
    classifier = learn(inside, outside)
    evaluated = (targets.evaluated.members, targets.evaluated.others)
    members, nons = (classifier(features(subject.model.theta, rows)) for rows in evaluated)
    return Scored(members, nons, 0.0)


def spread(rows: Rows, most: int) -> Rows:
    """At most ``most`` rows, evenly spaced: rows of a pool may be ordered by class."""
    return rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int)]
