"""White-box attack after Nasr, Shokri and Houmansadr, "Comprehensive Privacy Analysis of Deep Learning" (S&P
2019).

The attacker: a participant who has all parameters of the final model and knows the membership of its own examples and
of public ones. Features: loss, norm of the gradient within each named block, last hidden activations, label.
"""

from __future__ import annotations

import numpy as np

from fedpriv.attacks.classifier import Features, learn
from fedpriv.attacks.subject import Scored, Subject
from fedpriv.attacks.targets import Rows, Targets
from fedpriv.attacks.view import View
from fedpriv.common.messages import FloatVector

#: Below this a loss or a norm is rounding error.
SMALLEST = 1e-12


def attack(view: View, subject: Subject, targets: Targets) -> Scored:
    theta = subject.model.theta
    known, evaluated = targets.known, targets.evaluated
    inside, outside = (features(view, theta, rows) for rows in (known.members, known.others))
    kinds = [part.shape[1] for part in inside]
    classifier = learn(np.column_stack(inside), np.column_stack(outside), kinds)
    members, others = (
        classifier(np.column_stack(features(view, theta, rows))) for rows in (evaluated.members, evaluated.others)
    )
    return Scored(members, others, 0.0)


def features(view: View, theta: FloatVector, rows: Rows) -> list[Features]:
    """Loss and norms [n, 1 + blocks], as logarithms, since they span many powers of ten; activations [n, features];
    labels [n, classes].
    """
    losses, norms, hidden = view.inside(theta, rows)
    label = np.eye(len(view.pool.classes))[view.labels(rows)]
    sizes = np.log(np.maximum(np.nan_to_num(np.column_stack([losses, norms]), nan=1e30, posinf=1e30), SMALLEST))
    return [sizes, hidden, label]
