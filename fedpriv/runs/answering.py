"""The answers of a finished run with strategy=ask, from the noisy sum that its rounds have given."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpriv.common.messages import FloatVector
from fedpriv.config.methods import AskOptions
from fedpriv.config.schema import Config
from fedpriv.data.asked import KEPT, Asks
from fedpriv.data.table_answers import answers
from fedpriv.data.table_rows import MOST_LOST
from fedpriv.data.table_schema import TableSchema

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


def lost_cells(
    schema: TableSchema | None, sums: tuple[np.ndarray, float, float] | None
) -> tuple[list[dict[str, Any]], str]:
    """(of each column of categories, for summary.json, how many cells the schema does not name, with a 95 % interval
    for the noise; a warning where that is certainly more than `MOST_LOST` of the rows, or nothing).

    sums: the noisy sum of all inputs [k] that a method released, its noise's standard deviation, and the rows in it.
    Rows that were clipped count for less, so a count is rather too small. Post-processing of what was released.
    """
    counts, start, many = [], 0, []
    for name, column in () if schema is None or sums is None else schema.inputs:
        assert schema is not None and sums is not None
        (total, std, rows), place = sums, start + len(column.values or ())
        if column.kind == "values":
            low, high = (float(np.clip(total[place] + side * 1.96 * std, 0, rows)) for side in (-1, 1))
            counts.append({"column": name, "cells": float(total[place]), "low": low, "high": high})
            many += [name] if low > MOST_LOST * rows else []
        start += schema.width(column)
    words = "by the sums of round 1 more than a fifth of the cells are lost (of a value that the schema does not name)"
    return counts, f"WARNING: {', '.join(many)}: {words}" if many else ""


def as_csv(found: Sequence[Mapping[str, Any]]) -> str:
    """answers.csv: a line for each number."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in found:
        parts = (one[name] for name in ("of", "values", "low", "high"))
        writer.writerows((one["question"], *row) for row in zip(*parts, strict=True))
    return out.getvalue()
