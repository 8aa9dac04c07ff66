"""Cohorts in which one client's answer may decide what becomes of the others'.

A rule that looks at the raw answers of all (a median of their norms, the side of their mean, a quantile) changes
abruptly where the others stand in two groups and the neighbour tips the balance. The others are ``place`` of one group
and the rest of the other; every place is tried, and the one at which the neighbour moves the model most becomes a pair.
A sum of answers that are clipped one by one moves by the neighbour's own part alone, wherever the others stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedpriv.checking.flower_cohort import Cohort
from fedpriv.checking.flower_messages import Trained
from fedpriv.checking.flower_updates import LARGE, SMALL, plain
from fedpriv.checking.subject import Pair, Played

#: (what the groups differ in, length of an answer in the one group and in the other, of the neighbour's two answers).
#: The lengths of directions are those of a sum near zero.
GROUPS = (
    ("length", -LARGE, 1e-3 * LARGE, -LARGE, SMALL),
    ("length", -3.0, 0.9, -3.0, SMALL),
    ("direction", -1.01 * LARGE, LARGE, -LARGE, SMALL),
    ("direction", -1.01, 1.0, -1.0, SMALL),
)
#: Places that are tried, at most.
MOST_PLACES = 16
#: Seed of these plays: the same for both answers.
SEED = 4321
#: (cohort, seed, calls) -> what leaves.
Play = Callable[..., Sequence[Played]]


def telling_cohorts(play: Play, size: int, clients: int, removed: bool = False) -> Iterator[Pair]:
    """For groups of lengths and of directions the pair at whose place the model moves most; none where it never does.
    play: of the subject. size: numbers of the model. clients: of a round. removed: the neighbour replies or not, in
    place of an update or next to none.
    """
    places = sorted({int(place) for place in np.linspace(1, clients - 2, min(MOST_PLACES, clients - 2))})
    for kind in ("length", "direction"):
        tried = [_pair(size, clients, place, *group) for group in GROUPS if group[0] == kind for place in places]
        tried = [removal(pair) for pair in tried] if removed else tried
        moves = [moved(play, pair) for pair in tried]
        if max(moves, default=0.0) > 0:
            yield tried[int(np.argmax(moves))]


def _pair(size: int, clients: int, place: int, kind: str, one: float, other: float, up: float, none: float) -> Pair:
    def answer(length: float) -> Trained:
        return Trained(plain(size, length))

    first, second = answer(one), answer(other)
    others = [first] * place + [second] * (clients - 1 - place)
    sides = [Cohort((answer(length), *others)) for length in (up, none)]
    name = f"one client's update and next to none, where the others are of two {kind}s, {size} numbers"
    return Pair(name, sides[0], sides[1], "zero-out", "client")


def removal(pair: Pair) -> Pair:
    """The left side of a pair of rounds against the same round without a reply of the neighbour."""
    first, _, rest = pair.name.partition(",")
    name = f"{first.removesuffix(' and next to none')} or no reply,{rest}"
    return Pair(name, pair.left, pair.left.without_the_first(), "add-or-remove-one", pair.unit)


def moved(play: Play, pair: Pair) -> float:
    """L2 norm of the difference of the models that leave under one seed; 0 where they cannot be compared."""
    try:
        models = [
            np.concatenate([part for name, part in sorted(play(side, SEED)[0].numbers.items()) if name[:5] == "model"])
            for side in (pair.left, pair.right)
        ]
    except Exception:  # of foreign code: the layers say so
        return 0.0
    found = float(np.linalg.norm(models[0] - models[1])) if len({len(one) for one in models}) == 1 else 0.0
    return found if np.isfinite(found) else 0.0
