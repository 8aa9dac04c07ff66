"""Confidence series: "Basic MIA" of DP-FedAGS's tables, after Gu, Bai and Xu, "CS-MIA: Membership inference attack
based on prediction confidence series in federated learning" (Journal of Information Security and Applications 2022).

The attacker: a participant who keeps the global models of several rounds and knows the membership of its own examples
and of public ones. Features: the true class's confidence in each of these models, as log(p / (1 - p)).
"""

from __future__ import annotations

import numpy as np

from fedpriv.attacks.classifier import Features, learn
from fedpriv.attacks.subject import Scored, Subject, Trained
from fedpriv.attacks.targets import Rows, Targets
from fedpriv.attacks.view import View


def attack(view: View, subject: Subject, targets: Targets) -> Scored:
    def features(rows: Rows) -> Features:
        return series(view, subject.model, rows)

    classifier = learn(features(targets.known.members), features(targets.known.others))
    members, others = (classifier(features(rows)) for rows in (targets.evaluated.members, targets.evaluated.others))
    return Scored(members, others, 0.0)


def series(view: View, model: Trained, rows: Rows) -> Features:
    """[n, models]"""
    return np.stack([view.confidence(theta, rows) for theta in model.series], axis=1)
