"""Worst-case pairs and probes of an update: a vector of any length, in the form that a target takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedpriv.checking.subject import Numbers, Pair, Probe

#: L2 norm of an update that every clipping has to shorten, and of one that none has to.
LONG, SHORT = 1e4, 1e-3
#: Lengths of the probe.
LENGTHS = (1e-2, 1.0, 1e2, 1e4, 1e6, 1e8)


def direction(dimension: int) -> Numbers:
    """A unit vector [d] whose coordinates have mixed signs and no two equal sizes."""
    rng = np.random.default_rng(dimension)
    vector = rng.choice([-1.0, 1.0], dimension) * np.linspace(0.8, 1.2, dimension)
    return np.asarray(vector / np.linalg.norm(vector))


def axis(dimension: int, place: int = 0) -> Numbers:
    return np.eye(1, dimension, place)[0]


def update_pairs(dimension: int, form: Callable[[Numbers], Any], bound: float | None, unit: str) -> list[Pair]:
    """Neighbours: any update against any other, or against none. bound: no update is longer."""
    u, long = direction(dimension), bound or LONG
    v = u * np.where(np.arange(dimension) % 2, 1.0, -1.0)
    found = [
        ("opposite updates", long * u, -long * u),
        ("opposite updates along one coordinate", long * axis(dimension), -long * axis(dimension)),
        ("no update against one", 0 * u, long * u),
        ("no update against one along one coordinate", 0 * u, long * axis(dimension)),
        ("a short update against a long one in its direction", min(SHORT, long) * u, long * u),
        ("updates in two directions", long * u, long * v),
    ]
    return [
        Pair(name, form(left), form(right), "replace-one" if left.any() else "zero-out", unit)
        for name, left, right in found
    ]


def update_probes(dimension: int, form: Callable[[Numbers], Any], bound: float | None) -> list[Probe]:
    """A vector that grows, one along a single coordinate that grows, and vectors with what is no number."""
    u = direction(dimension)
    broken = []
    for value, sign in ((np.nan, 1), (np.inf, 1), (-np.inf, 1), (np.nan, -1), (np.inf, -1)):
        one = sign * LENGTHS[-1] * u
        one[0] = value
        broken.append(form(one))
    probes = [Probe("broken numbers", "broken", broken)]
    if bound is None:
        probes += [
            Probe("a longer update", "length", [form(length * u) for length in LENGTHS], LENGTHS),
            Probe(
                "one larger number",
                "length",
                [form(0.01 * u + length * axis(dimension)) for length in LENGTHS],
                LENGTHS,
            ),
        ]
    return probes


def in_layers(vector: Numbers) -> list[Numbers]:
    """[d] as the arrays of a small model: a matrix of two rows, and the rest."""
    half = len(vector) // 4 * 2
    return [vector[:half].reshape(2, -1).copy(), vector[half:].copy()]


def forms_of_update(torch: Any | None) -> Sequence[tuple[str, Callable[[Numbers], Any]]]:
    """(words, vector [d] -> an update) of every form that is tried, the likeliest first."""
    forms: list[tuple[str, Callable[[Numbers], Any]]] = [("a NumPy array", lambda v: np.array(v))]
    if torch is not None:
        forms.append(("a torch tensor", lambda v: torch.tensor(v, dtype=torch.float32)))
    forms += [
        ("a list of NumPy arrays", lambda v: in_layers(np.array(v, np.float32))),
        ("a dict of NumPy arrays", lambda v: dict(zip(("a", "b"), in_layers(np.array(v, np.float32)), strict=True))),
    ]
    if torch is not None:
        forms += [
            ("a list of torch tensors", lambda v: [torch.tensor(p, dtype=torch.float32) for p in in_layers(v)]),
            (
                "a dict of torch tensors",
                lambda v: {n: torch.tensor(p, dtype=torch.float32) for n, p in zip("ab", in_layers(v), strict=True)},
            ),
        ]
    return [*forms, ("a list of numbers", lambda v: [float(x) for x in v]), ("a number", lambda v: float(v[0]))]
