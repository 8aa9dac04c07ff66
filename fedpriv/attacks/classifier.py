"""The attack classifier: learned on examples of known membership, it scores any example."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Features = NDArray[np.float64]


@dataclass(frozen=True)
class Classifier:
    """Log-odds of membership; the threshold is 0, since both classes are equally large."""

    fitted: Any

    def __call__(self, features: Features) -> NDArray[np.float64]:
        """Scores [n] of features [n, f]."""
        scores: NDArray[np.float64] = self.fitted.decision_function(features)
        return scores


def learn(members: Features, others: Features, groups: Sequence[int] | None = None) -> Classifier:
    """Logistic regression on standardised features [n, f]; its penalty is chosen by cross-validation.

    groups: how many consecutive features are of one kind. Each kind then weighs the same under the penalty, however
    many features it has: a hundred activations must not outweigh one loss.
    """
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    features = np.concatenate([members, others])
    labels = np.concatenate([np.ones(len(members)), np.zeros(len(others))])
    weights = np.concatenate([np.full(size, size**-0.5) for size in groups or [1] * features.shape[1]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about convergence: the best of several penalties is used
        regression = LogisticRegressionCV(
            Cs=np.logspace(-3, 1, 4).tolist(), cv=5, scoring="neg_log_loss", max_iter=300, random_state=0
        )
        weigh = FunctionTransformer(lambda standardised: standardised * weights)
        fitted = make_pipeline(StandardScaler(), weigh, regression).fit(features, labels)
    return Classifier(fitted)
