"""ML-Leaks, adversary 1: Salem, Zhang, Humbert, Berrang, Fritz and Backes, "ML-Leaks: Model and Data Independent
Membership Inference Attacks and Defenses on Machine Learning Models" (NDSS 2019).

The attacker: sees only the posteriors of the final model, and trains one shadow model like it on its own examples.
Features: the three largest posteriors, sorted, as log(p / (1 - p)).
"""

from __future__ import annotations

import numpy as np

from fedpriv.attacks.classifier import Features, learn
from fedpriv.attacks.subject import Scored, Subject
from fedpriv.attacks.targets import Rows, Targets
from fedpriv.attacks.view import View, sorted_log_posteriors
from fedpriv.common.messages import FloatVector

#: Number of posteriors used; all of them where there are fewer classes.
LARGEST = 3


def attack(view: View, subject: Subject, targets: Targets) -> Scored:
    """Trained on the first shadow model, whose coins are its own: one example of each pair is in it and the other is
    not. Evaluated pairs are not learned from.
    """
    shadow = subject.shadows[0]

    def features(theta: FloatVector, rows: Rows) -> Features:
        return sorted_log_posteriors(view.logits(theta, rows), LARGEST)

    rows = np.concatenate([targets.known.rows, targets.rest.rows])
    inside = np.isin(rows, shadow.rows)
    classifier = learn(features(shadow.theta, rows[inside]), features(shadow.theta, rows[~inside]))
    evaluated = (targets.evaluated.members, targets.evaluated.others)
    members, nons = (classifier(features(subject.model.theta, rows)) for rows in evaluated)
    return Scored(members, nons, 0.0)
