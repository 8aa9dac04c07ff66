"""scikit-learn's MLPClassifier without a hidden layer: multinomial logistic regression by SGD."""

from __future__ import annotations

import warnings

from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from parity.peers import Seed, main


def run(seed: Seed) -> float:
    warnings.simplefilter("ignore", ConvergenceWarning)
    plain = {"alpha": 0.0, "momentum": 0.0, "nesterovs_momentum": False, "learning_rate": "constant", "solver": "sgd"}
    model = MLPClassifier(
        hidden_layer_sizes=(),
        batch_size=seed.terms["batch"],
        learning_rate_init=seed.terms["lr"],
        max_iter=seed.terms["rounds"],
        random_state=seed.number,
        tol=0.0,
        n_iter_no_change=seed.terms["rounds"] + 1,
        warm_start=True,
        **plain,
    )
    model.fit(seed.x.numpy(), seed.y.numpy())  # makes the arrays; it starts again below, with a new optimizer
    model.coefs_[0][:], model.intercepts_[0][:] = seed.start[0].numpy().T, seed.start[1].numpy()
    model.fit(seed.x.numpy(), seed.y.numpy())
    return float(model.score(seed.x_test.numpy(), seed.y_test.numpy()))


if __name__ == "__main__":
    main(run, lambda terms: None)
