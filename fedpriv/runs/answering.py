"""The answers of a finished run with strategy=ask, from the noisy sum that its rounds have given."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpriv.common.messages import FloatVector
from fedpriv.config.schema import Config
from fedpriv.config.sum_methods import RowSumOptions
from fedpriv.data.asked import KEPT, Asks
from fedpriv.data.table_answers import answers

COLUMNS = ("question", "of", "answer", "low", "high")


def noise_in_sum(options: RowSumOptions, rounds: Sequence[Mapping[str, Any]]) -> float:
    """Standard deviation of the noise in a coordinate of the mean of the rounds' sums, in units of a row's longest
    vector. rounds: lines of metrics.jsonl.
    """
    noises = [1 if options.form == "central" else int(row["participants"]) for row in rounds]
    return options.noise_multiplier * math.sqrt(sum(noises)) / max(1, len(rounds))


def answered(
    config: Config, asks: Asks, theta: FloatVector, rounds: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """One entry for each question, for summary.json: what each number is of, the numbers, and the ends of 95 %
    intervals for what the noise did. Post-processing of what was released.
    """
    if not rounds:
        return []
    options = config.strategy.options
    assert isinstance(options, RowSumOptions)
    std = noise_in_sum(options, rounds) / KEPT
    found = answers(asks.questions, theta.astype(np.float64) / KEPT, std, asks.rows_per_unit, config.seed)
    return [
        {
            "question": one.question,
            "of": list(one.names),
            "values": one.values.tolist(),
            "low": one.low.tolist(),
            "high": one.high.tolist(),
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
