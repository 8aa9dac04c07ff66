"""Adapter of functions ``train(data)``: a small data set in, what is published out, by a loop written without Opacus.

It is asked where a function takes no update. Data are a pair of rows and targets, two arguments or a data set of torch:
the first form that the function takes. Neighbouring data differ in one row, which is extreme in one of them. Nothing is
known of the loop's inside: its output alone is replayed and sampled.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from fedpriv.checking.release_function import ReleaseFunction, fresh_callable
from fedpriv.checking.subject import Numbers, Pair, Question, Subject

#: Rows of a data set, numbers of a row, and how long the extreme row is.
ROWS, NUMBERS, EXTREME = 16, 4, 1e3
#: (rows [n, d], targets [n]) -> the data as arguments.
Form = Callable[[Numbers, Numbers], tuple[Any, ...]]


@dataclass
class DataFunction(ReleaseFunction):
    kind: ClassVar[str] = "function of data"


def recognises(target: Any, question: Question) -> Subject | None:
    """A subject for a callable that takes a data set, or None where it takes none of those that are tried."""
    fresh, _ = fresh_callable(target)
    rows, targets = _rows()
    for words, form in _forms():
        trial = DataFunction("", (), fresh=lambda: partial(_called, fresh()))
        try:
            if len(trial.play(form(rows, targets), 1)[0].flat()) < 2:  # its form alone
                continue
        except Exception:  # of the target's own, for data that it was not meant for
            continue
        trial.name, trial.pairs, trial.claim = f"a function of {words}", _pairs(form, question), question.claim
        return trial
    return None


def _called(function: Any, data: tuple[Any, ...], rng: Any) -> Any:
    return function(*copy.deepcopy(data))


def _rows() -> tuple[Numbers, Numbers]:
    """Rows [16, 4] and a target of 0 or 1 for each."""
    rng = np.random.default_rng(11)
    rows = rng.normal(size=(ROWS, NUMBERS))
    return rows, (rows[:, 0] > 0).astype(np.float64)


def _pairs(form: Form, question: Question) -> list[Pair]:
    """One row against another; and with a claim of that adjacency one row in the data or not, whose number is public
    else.
    """
    rows, targets = _rows()
    extreme, opposite = rows.copy(), rows.copy()
    extreme[0] = EXTREME * np.array([1.0, -1.0, 1.0, 1.0])
    opposite[0] = -extreme[0]
    with_it = form(extreme, targets)
    pairs = [Pair("an extreme row against its opposite", with_it, form(opposite, targets), "replace-one", "example")]
    if question.claim is not None and question.claim.adjacency == "add-or-remove-one":
        without = form(rows[1:], targets[1:])
        pairs.append(Pair("an extreme row in the data or not", without, with_it, "add-or-remove-one", "example"))
    return pairs


def _forms() -> Iterator[tuple[str, Form]]:
    """Targets as classes, and as a column of numbers."""
    if "torch" in sys.modules:
        for classes in (True, False):
            kind = "classes" if classes else "numbers"
            yield f"a pair of tensors, rows and {kind}", partial(_tensors, classes=classes, form="pair")
            yield f"two tensors, rows and {kind}", partial(_tensors, classes=classes, form="two")
            yield f"a data set of rows and {kind}", partial(_tensors, classes=classes, form="data set")
    yield "a pair of arrays, rows and targets", lambda x, y: ((x.copy(), y.copy()),)
    yield "two arrays, rows and targets", lambda x, y: (x.copy(), y.copy())


def _tensors(rows: Numbers, targets: Numbers, *, classes: bool, form: str) -> tuple[Any, ...]:
    import torch
    from torch.utils.data import TensorDataset

    x = torch.tensor(rows, dtype=torch.float32)
    y = torch.tensor(targets).long() if classes else torch.tensor(targets, dtype=torch.float32)[:, None]
    return (x, y) if form == "two" else ((x, y),) if form == "pair" else (TensorDataset(x, y),)
