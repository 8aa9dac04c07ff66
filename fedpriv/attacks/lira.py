"""LiRA, offline: Carlini, Chien, Nasr, Song, Terzis and Tramèr, "Membership Inference Attacks From First Principles"
(S&P 2022).

The attacker: trains shadow models without the example. Their confidences in it, as log(p / (1 - p)), are modelled as a
Gaussian; an example is called a member where the attacked model is more confident than that Gaussian explains.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpriv.attacks.metrics import best_threshold
from fedpriv.attacks.subject import Scored, Subject
from fedpriv.attacks.targets import Rows, Targets, refuse_overlap
from fedpriv.attacks.view import View

#: With fewer shadow models one variance for all examples is better than one per example (the paper's section VI-B).
OWN_VARIANCE = 64


def attack(view: View, subject: Subject, targets: Targets) -> Scored:
    """The threshold is the one that best separates the examples whose membership the attacker knows."""
    for shadow in subject.shadows:
        for words, sides in (("evaluated", targets.evaluated), ("known", targets.known)):
            refuse_overlap("a shadow model's pictures", shadow.rows, f"the {words} pictures", sides.rows)

    def scores(rows: Rows) -> NDArray[np.float64]:
        without = np.stack([view.confidence(shadow.theta, rows) for shadow in subject.shadows])
        return tail(view.confidence(subject.model.theta, rows), without)

    parts = (targets.known.members, targets.known.others, targets.evaluated.members, targets.evaluated.others)
    all_scores = scores(np.concatenate(parts))  # one variance for all of them
    cuts = np.cumsum([len(part) for part in parts])[:-1]
    known_members, known_others, members, others = np.split(all_scores, cuts)
    return Scored(members, others, best_threshold(known_members, known_others))


def tail(confidence: NDArray[np.float64], without: NDArray[np.float64]) -> NDArray[np.float64]:
    """(confidence - mean) / deviation [n] of the attacked model's confidences [n] under the Gaussians of shadow models
    that were trained without the examples [shadows, n].

    The paper's score is Pr[N(mean, deviation^2) <= confidence], which orders examples in the same way and is 1 for
    many of them in floating point.
    """
    spread = without.std(axis=0, ddof=1)
    if len(without) < OWN_VARIANCE:
        spread = np.full(without.shape[1], np.sqrt(np.mean(spread**2)))
    scores: NDArray[np.float64] = (confidence - without.mean(axis=0)) / np.maximum(spread, 1e-9)
    return scores
