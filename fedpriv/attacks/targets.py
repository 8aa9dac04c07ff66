"""Pairs of a member and a non-member of the same class: evaluated, known to the attacker, and the rest.

Rows are those of the pool: all examples of the data set, its training examples first.

**Coins.** `dataset.train_examples` draws the run's rows S from its training examples, every S of this size being
equally likely. Rows of S are put into uniformly random order and dealt out to clients by their labels alone, or by a
column (`fedpriv/data/partition.py`); clients take part by seeds alone. Exchange a member for an example of the same
class and column outside S (or that no client got), in its place: the new S, the deal and every draw of `choose` are
exactly as likely.
So, given the pairs of `choose` and which of them are in which client, each of the 2^m ways to say who is the member in
each pair is equally likely: m independent fair coins, and turning one replaces one example of one client. For
this `choose` treats members and non-members alike: it pairs them uniformly within a class, and an example with a copy
is left out wherever the copy is. Where others are non-members (a test set, a split of the user's own), where a user's
code deals the rows out, or a person's rows go together, nothing of this holds.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.common.errors import FedprivError

Rows = NDArray[np.int64]

#: Fewest pairs for which an attack is reported.
FEWEST = 20


class OverlapError(FedprivError):
    """Evaluated examples are also among those that the attacker learns from."""


class TooFewExamples(FedprivError):
    """A run's data leave too few members or non-members."""


@dataclass(frozen=True)
class Sides:
    """Members and non-members, the i-th of each a pair of one class. homes: the client that has one of each pair, which
    no coin decides (see above).
    """

    members: Rows
    others: Rows
    homes: Rows = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        if len(self.homes) != len(self.members):
            object.__setattr__(self, "homes", np.zeros(len(self.members), np.int64))

    def __len__(self) -> int:
        return len(self.members)

    def of(self, which: slice | NDArray[np.bool_] | Rows) -> Sides:
        return Sides(self.members[which], self.others[which], self.homes[which])

    def first(self, count: int) -> Sides:
        return self.of(slice(count))

    def turned(self, coins: NDArray[np.bool_]) -> Sides:
        """Members and non-members exchanged in the pairs whose coin (bool [pairs]) says so."""
        members, others = np.where(coins, self.others, self.members), np.where(coins, self.members, self.others)
        return Sides(members, others, self.homes)

    def at(self, owner: Mapping[int, int]) -> Sides:
        """These pairs with the client of each member. owner: row -> client."""
        return Sides(self.members, self.others, np.array([owner[int(row)] for row in self.members], np.int64))

    @property
    def rows(self) -> Rows:
        return np.concatenate([self.members, self.others])


NONE = Sides(np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True)
class Targets:
    """evaluated: membership to be inferred; known: membership known to the attacker; rest: all other pairs.

    by_coin: whether fair coins chose the member of each pair (see above). Raises `OverlapError` where a row is given
    twice.
    """

    evaluated: Sides
    known: Sides
    rest: Sides = NONE
    by_coin: bool = False

    def __post_init__(self) -> None:
        parts = {
            f"{words} {side}members": rows
            for words, sides in (("evaluated", self.evaluated), ("known", self.known), ("other", self.rest))
            for side, rows in (("", sides.members), ("non-", sides.others))
        }
        for (one, rows), (other, more) in combinations(parts.items(), 2):
            refuse_overlap(one, rows, other, more)
        for name, rows in parts.items():
            if len(np.unique(rows)) < len(rows):
                raise OverlapError(f"{name}: a row is given twice")

    @property
    def pairs(self) -> Sides:
        """All pairs."""
        parts = (self.evaluated, self.known, self.rest)
        names = ("members", "others", "homes")
        return Sides(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def at(self, owner: Mapping[int, int]) -> Targets:
        """As `Sides.at`, of all pairs."""
        return Targets(self.evaluated.at(owner), self.known.at(owner), self.rest.at(owner), self.by_coin)


def refuse_overlap(one: str, rows: Rows, other: str, more: Rows) -> None:
    both = np.intersect1d(rows, more)
    if both.size:
        raise OverlapError(f"{one} and {other} share {both.size} rows, the first is {both[0]}")


def choose(
    clients: Sequence[Rows],
    outsiders: Rows,
    labels: NDArray[np.int64],
    *,
    by_coin: bool,
    most: int,
    known_share: float,
    rng: np.random.Generator,
) -> Targets:
    """Targets of a run from the training rows of each client that took part and the rows outside training.

    The attacker is one client, or as many as ``known_share`` makes; with one client in all, it knows that share of its
    examples. At most ``most`` pairs are evaluated, and as many known. Raises `TooFewExamples`.
    """
    known, candidates = _divide(clients, known_share, rng)
    members = rng.permutation(np.concatenate([known, candidates]))
    pairs = _matched(members, rng.permutation(outsiders), labels)
    mine = np.isin(pairs.members, known)
    learnt, hidden = pairs.of(mine), pairs.of(~mine)
    for words, sides in (("evaluated", hidden), ("known to the attacker", learnt)):
        if len(sides) < FEWEST:
            raise TooFewExamples(
                f"{len(sides)} members and as many non-members of the same classes could be {words}, at least "
                f"{FEWEST} are needed: {len(candidates)} examples of other clients, {len(known)} of the attacker, "
                f"{len(outsiders)} outside training. A smaller dataset.train_examples leaves more"
            )
    rest = Targets(hidden.of(slice(most, None)), learnt.of(slice(most, None))).pairs
    return Targets(hidden.first(most), learnt.first(most), rest, by_coin)


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


def _matched(members: Rows, others: Rows, labels: NDArray[np.int64]) -> Sides:
    """Pairs of a member and a non-member of the same class, as many as possible, in the order of ``members``; so an
    attack that only separates classes fails. Both are assumed to be in random order.
    """
    partner = np.full(len(members), -1, np.int64)
    for label in np.unique(labels[members]):
        places, of_class = np.flatnonzero(labels[members] == label), others[labels[others] == label]
        fewer = min(len(places), len(of_class))
        partner[places[:fewer]] = of_class[:fewer]
    return Sides(members[partner >= 0], partner[partner >= 0])


def singles(inputs: NDArray[Any], rows: Rows) -> Rows:
    """Those of ``rows`` whose input no other of them has: a copy of a member is not a non-member, and who
    has a copy among the members must not decide who is evaluated. inputs: the pool's [n, ...].
    """
    marks = [_fingerprint(inputs[row]) for row in rows]
    times = Counter(marks)
    return rows[[times[mark] == 1 for mark in marks]]


def _fingerprint(example: NDArray[Any]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(example).tobytes(), digest_size=16).digest()
