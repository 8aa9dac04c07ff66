"""Membership from what the server sees: each client's update u in rounds t, against the gradient g of an example at
the model that the server sent.

`product` and `cosine` are the scores of Zhang, Zhou, Xu, Wang and Chen, "Membership inference attacks against federated
learning by gradients", and of Li, Rezaei and Liu, "Effective passive membership inference attacks in federated learning
against overparameterized models" (ICLR 2023): <-g, u> and <-g, u> / (|g| |u|), summed over the rounds.

`likelihood` is the log likelihood ratio of two Gaussians over the rounds. The update of a client that trains on x is
taken as u = m - a g + e, and m + e without x. e is what its other examples and its noise add: its covariance is
S = R'R + rho I, R [k, d] the gradients of k examples that the attacker has. So with s = -(u - m)' S^-1 g and
q = g' S^-1 g the ratio of a round is (a s - a^2 q / 2) / c. a and the variance c of s / sqrt(q) are estimated from the
examples whose membership the attacker knows, and rho is the one that separates these best.

m is the mean update of the round's other clients. Which client has one example of a pair is no secret: coins decide
only which example it is (`fedpriv.attacks.targets`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.attacks.metrics import auc, best_threshold
from fedpriv.attacks.subject import Scored, Subject
from fedpriv.attacks.targets import Rows, Targets
from fedpriv.attacks.view import View
from fedpriv.runs.round_updates import RoundUpdates

Values = NDArray[np.float64]

#: Values of rho, times the mean eigenvalue of R R'.
SHARES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e3)
#: Below this a norm is rounding error.
SMALLEST = 1e-12


@dataclass(frozen=True)
class Asked:
    """The examples of an attack: rows and their clients [n], in four parts (known members, known others, evaluated
    members, evaluated others) that end at ``cuts``.
    """

    rows: Rows
    homes: Rows
    cuts: Rows

    @classmethod
    def of(cls, targets: Targets) -> Asked:
        known, evaluated = targets.known, targets.evaluated
        parts = (known.members, known.others, evaluated.members, evaluated.others)
        homes = (known.homes, known.homes, evaluated.homes, evaluated.homes)
        return cls(np.concatenate(parts), np.concatenate(homes), np.cumsum([len(part) for part in parts])[:-1])

    def known(self, scores: Values) -> tuple[Values, Values]:
        return scores[: self.cuts[0]], scores[self.cuts[0] : self.cuts[1]]

    def scored(self, scores: Values) -> Scored:
        """The threshold is the one that best separates the examples whose membership the attacker knows."""
        members, others = scores[self.cuts[1] : self.cuts[2]], scores[self.cuts[2] :]
        return Scored(members, others, best_threshold(*self.known(scores)))


def product(view: View, subject: Subject, targets: Targets) -> Scored:
    asked = Asked.of(targets)
    return asked.scored(sum(inner for inner, _ in _rounds(view, subject, asked)))  # type: ignore[arg-type]


def cosine(view: View, subject: Subject, targets: Targets) -> Scored:
    asked = Asked.of(targets)
    return asked.scored(sum(inner / lengths for inner, lengths in _rounds(view, subject, asked)))  # type: ignore[arg-type]


def _rounds(view: View, subject: Subject, asked: Asked) -> Iterator[tuple[Values, Values]]:
    """Of every round <-g, u - m> and |g| |u - m| [n]; zeros and ones where the client took no part."""
    heard = clients_of(subject)
    for seen in subject.model.seen.values():
        moves, place = directions(seen, asked.homes, heard)
        inner, squares = [], []
        for gradients in view.gradients(seen.before, asked.rows):
            inner.append(-(gradients @ moves.T).double())
            squares.append(gradients.double().square().sum(1))
        lengths = torch.cat(squares).sqrt().numpy() * moves.double().norm(dim=1).numpy()[place]
        yield _at(torch.cat(inner).numpy(), place), np.where(place < 0, 1.0, np.maximum(lengths, SMALLEST))


def likelihood(view: View, subject: Subject, targets: Targets) -> Scored:
    asked = Asked.of(targets)
    references = reference_rows(subject, targets)
    if len(references) == 0:
        half = len(targets.known) // 2  # what is known serves twice: half to learn the noise, half to learn the rest
        references = targets.known.of(slice(half, None)).rows
        targets = Targets(targets.evaluated, targets.known.first(half))
        asked = Asked.of(targets)
    heard = clients_of(subject)
    ratios = np.zeros((len(SHARES), len(asked.rows)))
    for seen in subject.model.seen.values():
        moves, place = directions(seen, asked.homes, heard)
        basis = torch.cat(list(view.gradients(seen.before, references)))
        values, vectors = np.linalg.eigh((basis @ basis.T).double().numpy())
        basis = torch.from_numpy(vectors.T).float() @ basis  # rows: eigenvectors of R'R times their lengths
        heard_along = (basis @ moves.T).double().numpy()  # [k, clients]
        inner, along, squares = [], [], []
        for gradients in view.gradients(seen.before, asked.rows):
            inner.append(-(gradients @ moves.T).double())
            along.append(-(gradients @ basis.T).double())
            squares.append(gradients.double().square().sum(1))
        plain, own = _at(torch.cat(inner).numpy(), place), torch.cat(along).numpy()
        own_square = torch.cat(squares).numpy()
        for number, share in enumerate(SHARES):
            weights = 1 / (np.maximum(values, 0) + share * max(float(values.mean()), SMALLEST))
            # S^-1 = (I - R' (R R' + rho I)^-1 R) / rho; the factor 1 / rho is part of c
            s = plain - _at((own * weights) @ heard_along, place)
            q = np.maximum(own_square - (own**2 @ weights), SMALLEST * (1 + own_square))
            ratios[number] += log_ratio(s, q, place >= 0, asked)
    best = max(ratios, key=lambda scores: auc(*asked.known(scores)).value)
    return asked.scored(best)


def log_ratio(s: Values, q: Values, there: NDArray[np.bool_], asked: Asked) -> Values:
    """(a r - a^2 q / 2) / c [n], r = s - b q: b, a and c are estimated from what the attacker knows; zeros where the
    client took no part (``there``), and where known members do not score higher than known others.
    """
    (inside, outside), (mass, more), (here, too) = asked.known(s), asked.known(q), asked.known(there.astype(float))
    if not here.any() or not too.any():
        return np.zeros(len(s))
    level = float((outside * too).sum() / (more * too).sum())
    amount = float((inside * here).sum() / (mass * here).sum()) - level
    if amount <= 0:
        return np.zeros(len(s))
    rest = s - level * q
    spread = float(((asked.known(rest)[1] ** 2 / more) * too).sum() / too.sum())
    return np.where(there, (amount * rest - amount**2 * q / 2) / max(spread, SMALLEST), 0.0)


def reference_rows(subject: Subject, targets: Targets) -> Rows:
    """Rows [k] that are no targets, evenly spaced among the public ones."""
    rows = np.setdiff1d(subject.public, targets.pairs.rows)
    return rows[np.unique(np.linspace(0, len(rows) - 1, subject.options.references).astype(int))] if rows.size else rows


def clients_of(subject: Subject) -> set[int]:
    return {client for seen in subject.model.seen.values() for client in seen.updates}


def directions(seen: RoundUpdates, homes: Rows, heard: set[int]) -> tuple[torch.Tensor, Rows]:
    """Updates less the mean of the round's others (float32 [clients + 1, d]; of one client alone its own), and the
    place [n] of every example's client among them, -1 where it took no part. The last is the mean of all, for an
    example whose client this model does not have.
    """
    clients = sorted(seen.updates)
    moves = torch.from_numpy(np.stack([seen.updates[client] for client in clients]))
    mean = moves.mean(0, keepdim=True)
    if len(clients) > 1:
        moves = (moves - mean) * (len(clients) / (len(clients) - 1))
    index = {client: place for place, client in enumerate(clients)}
    place = [index.get(int(home), -1 if int(home) in heard else len(clients)) for home in homes]
    return torch.cat([moves, mean]), np.array(place, np.int64)


def _at(values: Values, place: Rows) -> Values:
    """Of values [n, clients + 1] those at ``place`` [n]; zeros for -1."""
    found: Values = values[np.arange(len(place)), place]
    return np.where(place < 0, 0.0, found)
