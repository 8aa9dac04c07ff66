"""ML-Leaks, adversary 1: Salem, Zhang, Humbert, Berrang, Fritz and Backes, "ML-Leaks: Model and Data Independent
Membership Inference Attacks and Defenses on Machine Learning Models" (NDSS 2019).

The attacker: sees the posteriors of the final model only, and trains one shadow model like it on pictures of its own.
Features: the three largest posteriors, sorted, as log(p / (1 - p)).
"""

from __future__ import annotations

import numpy as np

from fedpriv.attacks.classifier import learn
from fedpriv.attacks.subject import Scored, Subject
from fedpriv.attacks.targets import Targets, refuse_overlap
from fedpriv.attacks.view import View, sorted_log_posteriors

#: Posteriors that the attack looks at; all of them where there are fewer classes.
LARGEST = 3


def attack(view: View, subject: Subject, targets: Targets) -> Scored:
    """The first shadow model's own rows are its members, the other spare rows are not."""
    shadow = subject.shadows[0]
    refuse_overlap("the shadow model's pictures", shadow.rows, "the evaluated pictures", targets.evaluated.rows)
    others = targets.spare[~np.isin(targets.spare, shadow.rows)][: len(shadow.rows)]
    inside, outside = (sorted_log_posteriors(view.logits(shadow.theta, rows), LARGEST) for rows in (shadow.rows, others))
    classifier = learn(inside[: len(outside)], outside)
    members, nons = (
        classifier(sorted_log_posteriors(view.logits(subject.model.theta, rows), LARGEST))
        for rows in (targets.evaluated.members, targets.evaluated.others)
    )
    return Scored(members, nons, 0.0)
