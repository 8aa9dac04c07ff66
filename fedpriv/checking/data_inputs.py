"""Neighbouring data sets for functions of data, in the form that a function takes.

Data are rows [n, d] and one target for each [n]. Two bases: *ordinary* rows, and *quiet* ones, which are zero with a
target of zero, so that the one row that differs is all that a loop learns from, and its part of a gradient keeps its
direction. Whether a quiet row has no part at all is tried (`is_null`): only then is it "the row zeroed out".
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedpriv.checking.subject import Numbers, Pair, Played, Probe, Question

#: Rows of a data set; numbers of a row where nothing says how many; of a wide row.
ROWS, NUMBERS, WIDE = 16, 4, 128
#: Clients, where data are a list of theirs.
CLIENTS = 4
#: Lengths of an extreme row, and of one that no sigmoid saturates; size of an extreme target.
EXTREME, MODERATE, TARGET = 1e3, 30.0, 1e6
#: Lengths of the probes.
LENGTHS = (1.0, 1e1, 3e1, 1e2, 3e2, 1e3, 1e4, 1e6)
#: What torch says of rows of a wrong length, with the right one.
WANTED = re.compile(r"cannot be multiplied \(\d+x\d+ and (\d+)x\d+\)")
#: Seeds with which it is tried whether a row has a part.
NULL_SEEDS = 4
#: data -> what leaves, of one call with a seed.
Play = Callable[[Any, int], Played]


@dataclass(frozen=True)
class Form:
    """How rows and targets are given. classes: targets are 0 and 1, whole numbers; else any number.

    make: (rows [n, d], targets [n]) -> the arguments. clients: its one argument is a list of clients' data.
    """

    words: str
    classes: bool
    make: Callable[[Numbers, Numbers], tuple[Any, ...]]
    clients: bool = False


def ordinary(numbers: int, rows: int = ROWS) -> tuple[Numbers, Numbers]:
    """Rows [n, d] of normal numbers, and a target of 0 or 1 for each."""
    x = np.random.default_rng(11).normal(size=(rows, numbers))
    return x, (x[:, 0] > 0).astype(np.float64)


def quiet(numbers: int, rows: int = ROWS) -> tuple[Numbers, Numbers]:
    return np.zeros((rows, numbers)), np.zeros(rows)


def pattern(numbers: int) -> Numbers:
    """Ones of mixed signs [d]."""
    return np.where(np.arange(numbers) % 4 == 1, -1.0, 1.0)


def with_row(base: tuple[Numbers, Numbers], row: Numbers, target: float) -> tuple[Numbers, Numbers]:
    """The base with another first row."""
    rows, targets = base[0].copy(), base[1].copy()
    rows[0], targets[0] = row, target
    return rows, targets


def data_pairs(form: Form, numbers: int, question: Question, play: Play, wide: bool) -> list[Pair]:
    """Neighbours that differ in one row. With a claim about one row more or less, pairs of that kind too.

    wide: the function takes rows of `WIDE` numbers as well.
    """
    base, made, found = quiet(numbers), form.make, []
    null = is_null(form, numbers, play)
    for length in (MODERATE, EXTREME) if form.classes else (EXTREME,):
        row = length * pattern(numbers)
        one, other = (1.0, 0.0) if form.classes else (TARGET, -TARGET)
        extreme = with_row(base, row, one)
        how = "a row of moderate length" if length == MODERATE else "an extreme row"
        if null:
            found.append(
                Pair(f"a row of zeros, which has no part, against {how}", made(*base), made(*extreme), "zero-out",
                     "example")
            )  # fmt: skip
        found.append(
            Pair(f"{how} against one of another target", made(*with_row(base, row, other)), made(*extreme),
                 "replace-one", "example")
        )  # fmt: skip
    rows, row = ordinary(numbers), EXTREME * pattern(numbers)
    with_it, opposite = with_row(rows, row, rows[1][0]), with_row(rows, -row, rows[1][0])
    found.append(Pair("an extreme row against its opposite", made(*with_it), made(*opposite), "replace-one", "example"))
    found += telling_rows(form, numbers, play)
    if form.clients and question.claim is not None and question.claim.unit == "client":
        found += client_pairs(form, numbers, question.claim.adjacency == "add-or-remove-one")
    if question.claim is not None and question.claim.adjacency == "add-or-remove-one":
        x, y = (part[::-1].copy() for part in with_it)  # the last row: the others stay in their places
        name = "an extreme row in the data or not"
        found.append(Pair(name, made(x[:-1], y[:-1]), made(x, y), "add-or-remove-one", "example"))
        if wide:
            few = quiet(WIDE, 2)
            alone = tuple(part[:1] for part in few)
            name = "two rows of many numbers against one"
            found.append(Pair(name, made(*alone), made(*few), "add-or-remove-one", "example"))
    return found


def client_pairs(form: Form, numbers: int, removed: bool) -> list[Pair]:
    """Neighbours that differ in all data of the last client; with ``removed`` in whether it takes part at all. The
    others' rows are zero, so that nothing else is learned, or all the opposite of its own, so that a mean over the
    clients moves most.
    """
    last, long = (np.arange(ROWS) % CLIENTS == CLIENTS - 1)[:, None], EXTREME * pattern(numbers)
    found = []
    for words, others in (("among rows of zeros", 0.0 * long), ("among their opposites", -long)):
        targets = np.where(last[:, 0] | others.any(), 1.0, 0.0)
        there = form.make(np.where(last, long, others), targets)
        opposite = form.make(np.where(last, -long, others), targets)
        name = f"a client of extreme rows, {words}, against one of opposite rows"
        found.append(Pair(name, opposite, there, "replace-one", "client"))
        if removed:
            missing = (there[0][:-1],)
            name = f"a client of extreme rows, {words}, there or not"
            found.append(Pair(name, missing, there, "add-or-remove-one", "client"))
    return found


def telling_rows(form: Form, numbers: int, play: Play) -> list[Pair]:
    """A long row against a short one where the others are half long, half short: a rule that looks at the raw gradients
    of all, such as a median of their norms, is tipped by it. Of two places of the half the one that moves more.
    """
    name, tried = "a long row against a short one among rows of both", []
    for long in (ROWS // 2 - 1, ROWS // 2):
        lengths = np.where(np.arange(ROWS) <= long, EXTREME, 1.0)
        targets = np.where(np.arange(ROWS) <= long, 1.0, 0.0)
        rows = lengths[:, None] * pattern(numbers)
        data = rows, targets
        sides = form.make(*data), form.make(*with_row(data, pattern(numbers), 0.0))
        try:
            one, other = (play(side, 1).flat() for side in sides)
            moved = float(np.linalg.norm(one - other)) if one.shape == other.shape else 0.0
        except Exception:  # of the target's own
            continue
        tried.append((moved, Pair(name, *sides, "replace-one", "example")))
    return [max(tried, key=lambda one: one[0])[1]] if tried else []


def is_null(form: Form, numbers: int, play: Play) -> bool:
    """Whether a row of zeros has no part in what leaves: whatever its target is, the same leaves under the same seeds,
    and without it the same too, or all of it in one proportion (a divisor that counts rows). And another row has one.
    """
    base = quiet(numbers)
    targets = (1.0,) if form.classes else (1.0, -30.0)
    apart = False
    try:
        for seed in range(1, NULL_SEEDS + 1):
            first = play(form.make(*base), seed).flat()
            for target in targets:
                if not _same(first, play(form.make(*with_row(base, base[0][0], target)), seed).flat()):
                    return False
            if not _proportional(first, play(form.make(base[0][1:], base[1][1:]), seed).flat()):
                return False
            other = with_row(base, MODERATE * pattern(numbers), 1.0)
            apart = apart or not _same(first, play(form.make(*other), seed).flat())
    except Exception:  # of the target's own
        return False
    return apart


def _same(one: Numbers, other: Numbers) -> bool:
    return one.shape == other.shape and bool(np.array_equal(one, other))


def _proportional(one: Numbers, other: Numbers) -> bool:
    """Whether all numbers but the form are equal up to one factor."""
    if one.shape != other.shape or not np.isfinite(one).all() or not np.isfinite(other).all():
        return False
    if one @ one == 0 or other @ other == 0:
        return bool(np.array_equal(one, other))
    moved = np.flatnonzero(one != other)
    if not len(moved):
        return True
    factor = float(one[moved] @ other[moved] / (one[moved] @ one[moved]))
    return bool(np.allclose(other[moved], factor * one[moved], rtol=1e-4, atol=0))


def data_probes(form: Form, numbers: int) -> list[Probe]:
    """A row that grows, a target that grows, and rows with what is no number."""
    base, made = ordinary(numbers), form.make
    unit = pattern(numbers) / np.sqrt(numbers)
    grown = [made(*with_row(base, length * unit, 1.0)) for length in LENGTHS]
    probes = [Probe("a longer row", "length", grown, LENGTHS)]
    if not form.classes:
        grown = [made(*with_row(quiet(numbers), unit, length)) for length in LENGTHS]
        probes.append(Probe("a larger target", "length", grown, LENGTHS))
    broken = []
    for value in (np.nan, np.inf, -np.inf):
        row = EXTREME * unit
        row[0] = value
        broken.append(made(*with_row(base, row, 1.0)))
    return [*probes, Probe("broken numbers", "broken", broken)]


# --- forms --------------------------------------------------------------------------------------------------------


def forms() -> Iterator[Form]:
    """Every form that is tried, the likeliest first: targets as a column of numbers, as numbers, as classes."""
    if "torch" in sys.modules:
        shapes = ("a pair of tensors", "two tensors", "a data set", "a list of clients' pairs",
                  "a list of clients' data sets", "a data loader", "a list of data loaders")  # fmt: skip
        for shape in shapes:
            for kind in ("a column of numbers", "numbers", "classes"):
                make = partial(_tensors, kind=kind, shape=shape)
                yield Form(f"{shape}, rows and {kind}", kind == "classes", make, shape.startswith("a list of"))
    yield Form("a pair of arrays, rows and targets", False, lambda x, y: ((x.copy(), y.copy()),))
    yield Form("two arrays, rows and targets", False, lambda x, y: (x.copy(), y.copy()))
    arrays = "a list of clients' arrays"
    yield Form(arrays, False, lambda x, y: ([(a.copy(), b.copy()) for a, b in _clients(x, y)],), clients=True)


def _clients(rows: Any, targets: Any) -> list[tuple[Any, Any]]:
    """`CLIENTS` clients with a share of the rows each, in turn."""
    return [(rows[rank::CLIENTS], targets[rank::CLIENTS]) for rank in range(CLIENTS)]


def _tensors(rows: Numbers, targets: Numbers, *, kind: str, shape: str) -> tuple[Any, ...]:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    x = torch.tensor(rows, dtype=torch.float32)
    y = torch.tensor(targets, dtype=torch.float32)
    y = y.long() if kind == "classes" else y[:, None] if kind == "a column of numbers" else y
    if shape == "two tensors":
        return x, y
    if shape == "a pair of tensors":
        return ((x, y),)
    if shape == "a list of clients' pairs":
        return (_clients(x, y),)
    if shape == "a list of clients' data sets":
        return ([TensorDataset(*one) for one in _clients(x, y)],)
    if shape == "a list of data loaders":
        return ([DataLoader(TensorDataset(*one), batch_size=2) for one in _clients(x, y)],)
    data = TensorDataset(x, y)
    return (DataLoader(data, batch_size=4),) if shape == "a data loader" else (data,)


def mixing(call: Callable[[], Any]) -> int:
    """How many numbers all tensors have that a call makes: targets of a wrong shape are broadcast against predictions,
    which makes more.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return 0
    from torch.overrides import TorchFunctionMode

    found, tensor = [0], torch.Tensor

    class Counts(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = function(*args, **(kwargs or {}))
            if isinstance(made, tensor):
                found[0] += made.numel()
            return made

    with Counts():
        call()
    return found[0]
