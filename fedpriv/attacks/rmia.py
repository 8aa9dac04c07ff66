"""RMIA: Zarifzadeh, Liu and Shokri, "Low-Cost High-Power Membership Inference Attacks" (ICML 2024).

The attacker compares the target x with other examples z of the population: how much likelier does the attacked model
make x than models that were trained with it in half of the cases, in relation to the same of z? The score is the share
of z with (Pr(x | theta) / Pr(x)) / (Pr(z | theta) / Pr(z)) >= gamma, Pr(x) the mean over the shadow models, half of
which were trained with x (the paper's online attack). [equations 2 to 4]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpriv.attacks.metrics import best_threshold
from fedpriv.attacks.subject import Scored, Subject
from fedpriv.attacks.targets import Rows, Targets
from fedpriv.attacks.view import View

Values = NDArray[np.float64]

#: Examples z at most.
POPULATION = 1000


def attack(view: View, subject: Subject, targets: Targets) -> Scored:
    """z: non-members that the attacker knows and public examples. The threshold is the one that best separates the
    examples whose membership the attacker knows, whose own scores leave themselves out of z.
    """
    known, evaluated = targets.known, targets.evaluated
    rows = np.concatenate([known.members, known.others, evaluated.members, evaluated.others])
    population = population_of(subject, targets)

    def relative(rows: Rows) -> Values:
        """log Pr(x | theta) - log Pr(x) [n]"""
        shadows = np.stack([log_probability(view.confidence(shadow.theta, rows)) for shadow in subject.shadows])
        return log_probability(view.confidence(subject.model.theta, rows)) - log_mean(shadows)

    scores = share_ahead(relative(rows), rows, relative(population), population, subject.options.rmia_gamma)
    parts = np.split(scores, np.cumsum([len(known), len(known), len(evaluated)]))
    return Scored(parts[2], parts[3], best_threshold(parts[0], parts[1]))


def population_of(subject: Subject, targets: Targets) -> Rows:
    public = subject.public[~np.isin(subject.public, targets.pairs.rows)]
    rows = np.concatenate([targets.known.others, public])
    return rows[np.unique(np.linspace(0, len(rows) - 1, POPULATION).astype(int))]


def share_ahead(of: Values, rows: Rows, population: Values, others: Rows, gamma: float) -> Values:
    """The share of the population [m] that each log ratio of ``of`` [n] exceeds by log gamma or more; a row is not
    compared with itself.
    """
    ordered = np.sort(population)
    ahead = np.searchsorted(ordered, of - np.log(gamma), side="right").astype(np.float64)
    itself = np.isin(rows, others)
    ahead -= itself & (gamma <= 1)
    return ahead / np.maximum(len(others) - itself, 1)


def log_probability(confidence: Values) -> Values:
    """log p from log(p / (1 - p))."""
    return -np.logaddexp(0.0, -confidence)


def log_mean(logs: Values) -> Values:
    """log of the mean of exp(logs) over the first axis."""
    highest = logs.max(0)
    found: Values = highest + np.log(np.exp(logs - highest).mean(0))
    return found
