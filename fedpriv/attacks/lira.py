"""LiRA: Carlini, Chien, Nasr, Song, Terzis and Tramèr, "Membership Inference Attacks From First Principles" (S&P 2022).

The attacker trains shadow models, each on one example of every pair, by coins of its own: half of them with an example,
half without. Their confidences in it, as log(p / (1 - p)), are modelled as two Gaussians; the score is the log of the
ratio of the attacked model's likelihoods.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpriv.attacks.metrics import best_threshold
from fedpriv.attacks.subject import Scored, Subject
from fedpriv.attacks.targets import Rows, Targets
from fedpriv.attacks.view import View

#: Shadow models from which on an example's own variances are estimated (the paper's).
OWN_VARIANCES = 64


def attack(view: View, subject: Subject, targets: Targets) -> Scored:
    """The threshold is the one that best separates the examples whose membership the attacker knows."""

    def scores(rows: Rows) -> NDArray[np.float64]:
        seen = np.stack([view.confidence(shadow.theta, rows) for shadow in subject.shadows])
        inside = np.stack([np.isin(rows, shadow.rows) for shadow in subject.shadows])
        return likelihood_ratio(view.confidence(subject.model.theta, rows), seen, inside)

    parts = (targets.known.members, targets.known.others, targets.evaluated.members, targets.evaluated.others)
    all_scores = scores(np.concatenate(parts))  # one variance for all of them
    cuts = np.cumsum([len(part) for part in parts])[:-1]
    known_members, known_others, members, others = np.split(all_scores, cuts)
    return Scored(members, others, best_threshold(known_members, known_others))


def likelihood_ratio(
    confidence: NDArray[np.float64], seen: NDArray[np.float64], inside: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """log N(c; mu_in, v) / N(c; mu_out, v) = s (c - (mu_in + mu_out) / 2) / v [n] of the attacked model's
    confidences c [n], with s = mu_in - mu_out, from those of shadow models [shadows, n] and whether each of them was
    trained with the example (bool [shadows, n]).

    The shadows are few, so all examples share one variance v (the paper's section VI-B), and s is shrunk towards its
    mean over the examples by the share of its spread that v explains (James and Stein). An example that all shadows
    have, or none, gets the mean s. From `OWN_VARIANCES` shadows on, every example has two variances of its own.
    """
    if len(seen) >= OWN_VARIANCES and min(inside.sum(0).min(), (~inside).sum(0).min()) > 2:
        return two_gaussians(confidence, seen, inside)
    many, few = np.maximum(inside.sum(0), 1), np.maximum((~inside).sum(0), 1)
    with_it, without = (np.where(part, seen, 0).sum(0) / count for part, count in ((inside, many), (~inside, few)))
    both = inside.any(0) & ~inside.all(0)
    residual = seen - np.where(inside, with_it, without)
    freedom = max(1, residual.size - int(inside.any(0).sum() + (~inside).any(0).sum()))
    variance = max(float((residual**2).sum()) / freedom, 1e-18)
    shift = np.where(both, with_it - without, 0.0)
    mean = float(shift[both].mean()) if both.any() else 1.0
    noise = variance * float((1 / many + 1 / few)[both].mean()) if both.any() else 1.0
    spread = float(shift[both].var()) if both.any() else 0.0
    kept = max(0.0, 1 - noise / spread) if spread > 0 else 0.0
    shrunk = np.where(both, mean + kept * (shift - mean), mean)
    middle = np.where(both, (with_it + without) / 2, np.where(inside.any(0), with_it - mean / 2, without + mean / 2))
    scores: NDArray[np.float64] = shrunk * (confidence - middle) / variance
    return scores


def two_gaussians(
    confidence: NDArray[np.float64], seen: NDArray[np.float64], inside: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """log N(c; mu_in, v_in) / N(c; mu_out, v_out) [n], all four of each example alone."""
    logs = []
    for part in (inside, ~inside):
        count = part.sum(0)
        mean = np.where(part, seen, 0).sum(0) / count
        variance = np.maximum((np.where(part, seen - mean, 0) ** 2).sum(0) / (count - 1), 1e-18)
        logs.append(-0.5 * ((confidence - mean) ** 2 / variance + np.log(variance)))
    scores: NDArray[np.float64] = logs[0] - logs[1]
    return scores
