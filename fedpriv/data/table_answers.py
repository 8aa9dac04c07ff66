"""A list of questions about a table: what each unit adds to their one sum, and the answers that a noisy sum gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.data.questions import Question, Values

#: Draws of the noise behind an interval.
DRAWS = 2000


@dataclass(frozen=True)
class Answer:
    """values, low, high: float64 [k]; low and high hold 95 % of what the noise may have made of the true values."""

    question: str
    names: tuple[str, ...]
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray


def weights(questions: Sequence[Question]) -> np.ndarray:
    """w_q [questions] with sum of squares 1: each question gets the same noise for a vector of length 1."""
    return np.full(len(questions), 1 / math.sqrt(len(questions)))


def contributions(
    questions: Sequence[Question], values: Values, unit: np.ndarray | None, rows_per_unit: int | None = None
) -> np.ndarray:
    """What each unit adds to the sum: float64 [units, numbers], each of length at most 1.

    unit: int64 [n], None: a row is a unit. rows_per_unit: of a unit's rows at most so many count, each as a row (the
    first ones of the file); None: a unit counts once, with the mean of its rows.
    """
    parts = [question.vectors(values) * weight for question, weight in zip(questions, weights(questions), strict=True)]
    vectors = np.concatenate(parts, axis=1)
    if unit is None:
        return vectors
    _, ids = np.unique(unit, return_inverse=True)
    share = 1.0 / np.bincount(ids)[ids]
    if rows_per_unit is not None:
        order = np.argsort(ids, kind="stable")
        starts = np.searchsorted(ids[order], np.arange(ids.max() + 1))
        rank = np.empty(len(ids), np.int64)
        rank[order] = np.arange(len(ids)) - starts[ids[order]]
        share = (rank < rows_per_unit) / rows_per_unit
    total = np.zeros((ids.max() + 1, vectors.shape[1]))
    np.add.at(total, ids, vectors * share[:, None])
    return total


def answers(
    questions: Sequence[Question], total: np.ndarray, std: float, rows_per_unit: int | None = None, seed: int = 0
) -> list[Answer]:
    """The answers that a noisy sum [numbers] gives; ``std``: the noise's standard deviation on each of its numbers.

    The interval holds what the noise did, not who happened to be asked: the middle 95 % of the answers that further
    draws of the same noise give around the noisy sum (a parametric bootstrap; tests measure how often it holds).
    """
    rng, found, start = np.random.default_rng(seed), [], 0
    for question, weight in zip(questions, weights(questions), strict=True):
        scale = (rows_per_unit or 1) / weight
        part = total[start : start + question.size] * scale
        start += question.size
        values = question.decode(part)
        draws = question.decode(part + rng.normal(0, std * scale, (DRAWS, question.size))) if std else values[None]
        low, high = np.quantile(draws, (0.025, 0.975), axis=0)
        found.append(Answer(question.text, question.names, values, low, high))
    return found
