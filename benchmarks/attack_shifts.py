"""Pictures whose members and non-members differ in one way, for `benchmarks.attack_verdicts`: `dataset=custom` with
``dataset.path=benchmarks.attack_shifts.NAME``. Both sides have the same number of pictures of each class.

FEDPRIV_SHIFTED names a folder with MNIST's files (dataset.root of `dataset=mnist`); without it the digits of
scikit-learn are used.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import numpy as np

Split = tuple[np.ndarray, np.ndarray]

#: Members and non-members of MNIST.
MEMBERS, OTHERS = 10_000, 10_000


@cache
def _pictures() -> Split:
    """uint8 [n, 1, h, w] and labels, in random order."""
    from fedpriv.config.compose import compose
    from fedpriv.data.load import load_pool

    root = os.environ.get("FEDPRIV_SHIFTED")
    config = compose(["dataset=mnist", f"dataset.root={root}"] if root else [])
    pool = load_pool(config.dataset, 0).train
    order = np.random.default_rng(0).permutation(len(pool.targets))
    return pool.inputs[order], pool.targets[order]


def _sides(score: Callable[[np.ndarray], np.ndarray] | None, split: str) -> Split:
    """Within each class the members are those of the smaller scores; without a score, chosen by lot."""
    images, labels = _pictures()
    few = len(labels) < MEMBERS + OTHERS
    members, others = (len(labels) // 3, len(labels) - len(labels) // 3) if few else (MEMBERS, OTHERS)
    rows, classes = np.arange(len(labels) if few else members + others), int(labels.max()) + 1
    scores = np.zeros(len(rows)) if score is None else score(images[rows].astype(np.float64)[:, 0])
    chosen = []
    for label in range(classes):
        of = rows[labels[rows] == label]
        of = of[np.argsort(scores[of], kind="stable")]
        cut = round(len(of) * members / len(rows))
        chosen.append(of[:cut] if split == "train" else of[cut:])
    found = np.sort(np.concatenate(chosen))
    return images[found].copy(), labels[found].copy()


def _moments(images: np.ndarray) -> tuple[np.ndarray, ...]:
    mass = images.sum((1, 2)) + 1e-9
    y, x = np.mgrid[: images.shape[1], : images.shape[2]]
    cy, cx = (images * y).sum((1, 2)) / mass, (images * x).sum((1, 2)) / mass
    dy, dx = y - cy[:, None, None], x - cx[:, None, None]
    return cy, cx, *((images * part).sum((1, 2)) / mass for part in (dy * dx, dy * dy, dx * dx))


def slant(split: str) -> Split:
    """Members lean to one side, non-members to the other."""

    def score(images: np.ndarray) -> np.ndarray:
        _, _, across, tall, _ = _moments(images)
        return across / (tall + 1e-9)

    return _sides(score, split)


def stroke(split: str) -> Split:
    """Members are thin, non-members bold."""
    return _sides(lambda images: images.mean((1, 2)), split)


def height(split: str) -> Split:
    """Members are written high, non-members low (of digits: their centre of mass)."""
    return _sides(lambda images: _moments(images)[0], split)


def width(split: str) -> Split:
    """Members are narrow, non-members wide."""
    return _sides(lambda images: _moments(images)[4], split)


def _changed(change: Callable[[np.ndarray, np.random.Generator], np.ndarray], split: str) -> Split:
    """By lot, and the non-members' pictures are changed: float [n, h, w] of 0 to 255."""
    images, labels = _sides(None, split)
    if split == "test":
        changed = change(images[:, 0].astype(np.float64), np.random.default_rng(1))
        images[:, 0] = np.clip(np.rint(changed), 0, 255).astype(np.uint8)
    return images, labels


def brightness(split: str) -> Split:
    return _changed(lambda images, rng: images * 0.6, split)


def noise(split: str) -> Split:
    return _changed(lambda images, rng: images + 40 * rng.standard_normal(images.shape), split)


def translation(split: str) -> Split:
    return _changed(lambda images, rng: np.roll(images, max(1, images.shape[1] // 9), axis=2), split)


def scale(split: str) -> Split:
    """Cropped to the middle four fifths and enlarged again (nearest pixel)."""

    def crop(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        size = images.shape[1]
        rows = np.clip(np.rint((np.arange(size) - (size - 1) / 2) * 0.8 + (size - 1) / 2).astype(int), 0, size - 1)
        return images[:, rows][:, :, rows]

    return _changed(crop, split)


def contrast(split: str) -> Split:
    """Even classes of the non-members are paler."""
    images, labels = _sides(None, split)
    if split == "test":
        images[labels % 2 == 0] = (images[labels % 2 == 0] * 0.6).astype(np.uint8)
    return images, labels


def wrong_labels(split: str) -> Split:
    """A third of the non-members' labels are wrong."""
    images, labels = _sides(None, split)
    if split == "test":
        rng = np.random.default_rng(1)
        wrong = rng.random(len(labels)) < 1 / 3
        labels[wrong] = (labels[wrong] + rng.integers(1, 10, wrong.sum())) % 10
    return images, labels


def sites(split: str) -> Split:
    """The non-members come from another scanner: a gradient of light, a grey background, and noise."""

    def scanner(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        light = np.linspace(0.7, 1.0, images.shape[2])
        return 20 + 0.9 * images * light + 10 * rng.standard_normal(images.shape)

    return _changed(scanner, split)


def nothing(split: str) -> Split:
    """Members and non-members by lot: the two sides do not differ."""
    return _sides(None, split)


SHIFTS = (
    "slant",
    "stroke",
    "height",
    "width",
    "brightness",
    "noise",
    "translation",
    "scale",
    "contrast",
    "wrong_labels",
    "sites",
    "nothing",
)
