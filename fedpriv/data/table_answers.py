"""The answers to a list of questions about a table that noisy sums give (`fedpriv.data.asked`: what is summed)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpriv.data.questions import Question, weights

#: Draws of the noise behind an interval.
DRAWS = 2000


@dataclass(frozen=True)
class Answer:
    """values, low, high: float64 [k]; low and high hold the true values with probability 95 %, each by itself, over the
    draws of the noise. remarks: on how finely values are told apart.
    """

    question: str
    names: tuple[str, ...]
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray
    remarks: tuple[str, ...] = ()


def zoomed(
    questions: Sequence[Question], earlier: np.ndarray, std: float, rows_per_unit: int | None = None
) -> tuple[Question, ...]:
    """The questions as the next round asks them, from the noisy sums [rounds, numbers] of those before. std: of the
    noise on their numbers, as it is planned.
    """
    zoomed, start = list[Question](), 0
    for question, weight in zip(questions, weights(questions), strict=True):
        scale = (rows_per_unit or 1) / weight
        if (bins := question.bins) is not None:
            for total in earlier[:, start : start + question.size]:
                bins = bins.zoomed(total * scale, std * scale)
            question = Question.of_bins(question.text, question.columns[0], bins)
        start += question.size
        zoomed.append(question)
    return tuple(zoomed)


def answers(
    questions: Sequence[Question],
    totals: np.ndarray,
    stds: ArrayLike,
    rows_per_unit: int | None = None,
    seed: int = 0,
) -> list[Answer]:
    """The answers that the noisy sums of rounds [rounds, numbers] give (of one round: [numbers]).

    questions: as the last round asked them. stds: the noise's standard deviation on each number, of each round.

    Rounds that ask the same are averaged. Of quantiles that were zoomed in on, the last one answers, with intervals as
    `fedpriv.data.quantiles` has them. Of other questions the interval is the middle 95 % of the answers that further
    draws of the same noise give around the noisy sum (a parametric bootstrap; tests measure how often it holds).
    """
    totals, stds = np.atleast_2d(totals), np.atleast_1d(np.asarray(stds, np.float64))
    rng, told, start = np.random.default_rng(seed), list[Answer](), 0
    for question, weight in zip(questions, weights(questions), strict=True):
        scale = (rows_per_unit or 1) / weight
        bins, last = question.bins, len(totals) - 1
        asked = slice(last if bins is not None and not bins.final else 0, None)
        part = totals[asked, start : start + question.size].mean(axis=0) * scale
        std = float(np.linalg.norm(stds[asked])) / len(stds[asked]) * scale
        start += question.size
        if bins is not None:
            told.append(Answer(question.text, question.names, *bins.answer(part, std)))
            continue
        values = question.decode(part)
        draws = question.decode(part + rng.normal(0, std, (DRAWS, question.size))) if std else values[None]
        low, high = np.quantile(draws, (0.025, 0.975), axis=0)
        told.append(Answer(question.text, question.names, values, low, high))
    return told
