"""The answers of a finished run with strategy=ask, from the noisy sum that its rounds have given."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpriv.common.messages import FloatVector
from fedpriv.config.schema import Config
from fedpriv.config.sum_methods import AskOptions
from fedpriv.data.asked import KEPT, Asks
from fedpriv.data.table_answers import answers

COLUMNS = ("question", "of", "answer", "low", "high")


def noise_in_sums(options: AskOptions, rounds: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Standard deviation of the noise in a coordinate of each round's sum, or of the mean of these sums where they have
    one section, in units of a row's longest vector. rounds: lines of metrics.jsonl.
    """
    noises = np.array([1 if options.form == "central" else int(row["participants"]) for row in rounds])
    stds = options.noise_multiplier * np.sqrt(noises)
    return stds if options.sections > 1 else np.array([np.linalg.norm(stds) / len(stds)])


def answered(
    config: Config, asks: Asks, theta: FloatVector, rounds: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """One entry for each question, for summary.json: what each number is of, the numbers, and the ends of 95 %
    intervals for what the noise did. Post-processing of what was released.
    """
    if not rounds:
        return []
    options = config.strategy.options
    assert isinstance(options, AskOptions)
    numbers = [int(row["round"]) for row in rounds]
    totals = asks.rounds(theta)[[number - 1 for number in numbers] if asks.sections > 1 else [0]]
    questions, stds = asks.at_round(numbers[-1], theta), noise_in_sums(options, rounds) / KEPT
    found = answers(questions, totals, stds, asks.rows_per_unit, config.seed)
    return [
        {
            "question": one.question,
            "of": list(one.names),
            "values": one.values.tolist(),
            "low": one.low.tolist(),
            "high": one.high.tolist(),
            **({"remarks": list(one.remarks)} if one.remarks else {}),
        }
        for one in found
    ]


def as_csv(found: Sequence[Mapping[str, Any]]) -> str:
    """answers.csv: a line for each number."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in found:
        parts = (one[name] for name in ("of", "values", "low", "high"))
        writer.writerows((one["question"], *row) for row in zip(*parts, strict=True))
    return out.getvalue()
