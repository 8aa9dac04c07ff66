"""Evaluated examples, examples known to the attacker, and examples left for shadow models.

Rows are those of the pool: all pictures of the data set, its training pictures first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from fedpriv.common.errors import FedprivError

Rows = NDArray[np.int64]

#: Fewest examples of each class for which an attack is reported.
FEWEST = 20

#: Shares of the pictures outside training: evaluated, known to the attacker; the rest is for shadow models.
EVALUATED, KNOWN = 0.35, 0.15


class OverlapError(FedprivError):
    """Evaluated examples are also among those that the attacker learns from."""


class TooFewExamples(FedprivError):
    """A run's data leave too few members or non-members."""


@dataclass(frozen=True)
class Sides:
    """Members and non-members, equally many, with the same number of each class."""

    members: Rows
    others: Rows

    def first(self, count: int) -> Sides:
        return Sides(self.members[:count], self.others[:count])

    @property
    def rows(self) -> Rows:
        return np.concatenate([self.members, self.others])


@dataclass(frozen=True)
class Targets:
    """evaluated: membership to be inferred; known: membership known to the attacker; spare: rows for shadow models.

    Raises `OverlapError` where a row is in two of them.
    """

    evaluated: Sides
    known: Sides
    spare: Rows

    def __post_init__(self) -> None:
        parts = {
            "evaluated members": self.evaluated.members,
            "evaluated non-members": self.evaluated.others,
            "known members": self.known.members,
            "known non-members": self.known.others,
            "rows of shadow models": self.spare,
        }
        for (one, rows), (other, more) in combinations(parts.items(), 2):
            refuse_overlap(one, rows, other, more)
        for name, rows in parts.items():
            if len(np.unique(rows)) < len(rows):
                raise OverlapError(f"{name}: a row is there twice")


def refuse_overlap(one: str, rows: Rows, other: str, more: Rows) -> None:
    both = np.intersect1d(rows, more)
    if both.size:
        raise OverlapError(f"{one} and {other} share {both.size} rows, the first is {both[0]}")


def choose(
    clients: Sequence[Rows],
    outsiders: Rows,
    labels: NDArray[np.int64],
    *,
    most: int,
    known_share: float,
    rng: np.random.Generator,
) -> Targets:
    """Targets of a run from the training rows of each client that took part and the rows outside training.

    The attacker is one client, or as many as ``known_share`` makes; with one client in all, it knows that share of its
    pictures. Raises `TooFewExamples`.
    """
    known, candidates = _divide(clients, known_share, rng)
    outsiders = rng.permutation(outsiders)
    size = min(most, int(EVALUATED * len(outsiders)))
    evaluated = _matched(rng.permutation(candidates), outsiders, labels, size)
    left = outsiders[~np.isin(outsiders, evaluated.others)]
    learnt = _matched(rng.permutation(known), left, labels, min(most, int(KNOWN * len(outsiders))))
    spare = np.sort(left[~np.isin(left, learnt.others)])
    for words, sides in (("evaluated", evaluated), ("known to the attacker", learnt)):
        if len(sides.members) < FEWEST:
            raise TooFewExamples(
                f"{len(sides.members)} members and as many non-members of the same classes could be {words}, at least "
                f"{FEWEST} are needed: {len(candidates)} pictures of other clients, {len(known)} of the attacker, "
                f"{len(outsiders)} that nobody trains on. dataset.train_examples leaves more of them out of training"
            )
    return Targets(evaluated, learnt, spare)


def _divide(clients: Sequence[Rows], share: float, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """(rows of the attacker's own clients, rows of the others)."""
    if not clients:
        raise TooFewExamples("no client took part in this run, so there are no members")
    if len(clients) == 1:
        rows = rng.permutation(clients[0])
        cut = round(share * len(rows))
        return rows[:cut], rows[cut:]
    order = [clients[index] for index in rng.permutation(len(clients))]
    cut = min(max(1, round(share * len(order))), len(order) - 1)
    return np.concatenate(order[:cut]), np.concatenate(order[cut:])


def _matched(members: Rows, others: Rows, labels: NDArray[np.int64], most: int) -> Sides:
    """At most ``most`` pairs of a member and a non-member of the same class, so that an attack that only separates
    classes fails. Both are assumed to be in random order.
    """
    pairs = []
    for label in np.unique(labels[members]):
        of_class = members[labels[members] == label], others[labels[others] == label]
        fewer = min(map(len, of_class))
        pairs.append(np.stack([rows[:fewer] for rows in of_class], axis=1))
    stacked = np.concatenate(pairs) if pairs else np.zeros((0, 2), dtype=np.int64)
    place = {int(row): index for index, row in enumerate(members)}
    order = np.array([place[int(row)] for row in stacked[:, 0]], dtype=np.int64).argsort()
    chosen = stacked[order][:most]
    return Sides(chosen[:, 0], chosen[:, 1])


def without_copies(images: NDArray[np.uint8], first: Rows, rows: Rows) -> Rows:
    """Those of ``rows`` whose picture is neither in ``first`` nor in an earlier row: a copy of a
    member is not a non-member. images: the pool, uint8 [n, c, h, w].
    """
    seen = {_fingerprint(images[row]) for row in first}
    kept = []
    for row in rows:
        mark = _fingerprint(images[row])
        if mark not in seen:
            seen.add(mark)
            kept.append(row)
    return np.array(kept, dtype=np.int64)


def _fingerprint(image: NDArray[np.uint8]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(image).tobytes(), digest_size=16).digest()
