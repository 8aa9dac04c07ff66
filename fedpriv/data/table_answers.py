"""The answers to a list of questions about a table that a noisy sum gives (`fedpriv.data.asked`: what is summed)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.data.questions import Question, weights

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
