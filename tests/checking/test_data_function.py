"""Training loops that are written without Opacus: functions of data, whose output alone is looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from checking.renaming import renamed
from torch.utils.data import DataLoader, Dataset

from fedpriv.checking.checks import check_object, subject_of
from fedpriv.checking.findings import FAULTS, NO_FAULT, NOT_CHECKED
from fedpriv.checking.functions import DataFunction, forms, is_null, loop_like, recognises_data, telling_rows
from fedpriv.checking.reading import Played
from fedpriv.checking.replay import length_probe, replay
from fedpriv.checking.subject import Budget, Claim, Question


def loop(noise: float, data: tuple[torch.Tensor, torch.Tensor], batch: int = 4) -> list[torch.Tensor]:
    """Clipped gradients of a linear model, summed with noise: the model after each batch of the one pass."""
    rows, wanted = data
    weights, published = torch.zeros(rows.shape[1]), []
    for first in range(0, len(rows) - batch + 1, batch):
        x, y = rows[first : first + batch], wanted[first : first + batch]
        gradients = (x @ weights - y)[:, None] * x
        gradients = gradients / gradients.norm(dim=1, keepdim=True).clamp(min=1)
        weights = weights - 0.1 * (gradients.sum(0) + noise * torch.randn(len(weights)))
        published.append(weights)
    return published


def found(target: Any, epsilon: float, adjacency: str = "replace-one") -> Any:
    claim = Claim(epsilon, 1e-5, adjacency=adjacency)
    return check_object(target, Question(claim=claim, trials=1500), seconds=8)


def test_a_sound_loop_passes() -> None:
    """One step of every pass holds the row, and rows are 2 apart: a Gaussian of 2 / 4, epsilon 2.1."""
    said = found(lambda data: loop(4.0, data), 2.2)
    assert said.verdict == NO_FAULT, said.findings


def test_a_loop_without_noise_and_one_with_too_little_are_found() -> None:
    bare = found(lambda data: loop(0.0, data), 2.2)
    assert bare.verdict == FAULTS and "no-randomness" in {one.name for one in bare.findings}
    little = found(lambda data: loop(0.4, data), 2.2)
    assert little.verdict == FAULTS and "moves-more-than-claimed" in {one.name for one in little.findings}


@pytest.mark.parametrize(("adjacency", "verdict"), [("add-or-remove-one", FAULTS), ("zero-out", NO_FAULT)])
def test_the_number_of_rows_counts_where_the_claim_is_about_it(adjacency: str, verdict: str) -> None:
    """Fifteen rows make three batches of four, sixteen make four."""
    assert found(lambda data: loop(4.0, data), 2.2, adjacency).verdict == verdict


def test_what_takes_neither_updates_nor_data_says_so() -> None:
    def asks_for_names(data: Any) -> Any:
        return data["rows"], data["names"]

    said = found(asks_for_names, 1.0)
    assert said.verdict == NOT_CHECKED


# --- what one row does --------------------------------------------------------------------------------------------


def descent(data: Any = None, noise: float = 2.0, steps: int = 4, clip: float = 1.0, bias: bool = False) -> Any:
    """Full batches of a linear model on NumPy's arrays; the noise is of `noise` clips of 1."""
    rows, wanted = data
    rows = np.hstack([rows, np.ones((len(rows), 1))]) if bias else rows
    weights = np.zeros(rows.shape[1])
    for _ in range(steps):
        gradients = np.nan_to_num((rows @ weights - wanted)[:, None] * rows, nan=0.0, posinf=0.0, neginf=0.0)
        lengths = np.linalg.norm(gradients, axis=1, keepdims=True)
        total = (gradients * (clip / np.maximum(lengths, clip))).sum(0)
        weights = weights - 0.1 * (total + noise * np.random.normal(size=len(weights))) / 16  # noqa: NPY002
    return weights


def sound(data: Any = None) -> Any:
    return descent(data)


def half_the_noise(data: Any = None) -> Any:
    return descent(data, noise=1.0)


def longer_clip(data: Any = None) -> Any:
    return descent(data, clip=10.0)


def with_bias(data: Any = None) -> Any:
    return descent(data, bias=True)


def decay_by_targets(data: Any = None) -> Any:
    return descent(data) * (1 - 0.01 * np.abs(data[1]).mean())


def standardised(data: Any = None) -> Any:
    """The mean of all rows moves with one."""
    rows, targets = data
    return descent((rows - rows.mean(0), targets), steps=1)


def as_a_model(data: Any = None, noise: float = 2.0) -> Any:
    weights = torch.as_tensor(descent(data, noise), dtype=torch.float32)
    model = torch.nn.Linear(len(weights), 1, bias=False)
    model.weight.data = weights[None]
    return model


def as_a_bare_model(data: Any = None) -> Any:
    return as_a_model(data, noise=0.02)


#: Four steps with noise of twice the clip: mu 1, epsilon 4.38.
CLAIM = Claim(4.4, 1e-5, "run", adjacency="zero-out")


def faults(target: Any, claim: Claim | None = CLAIM, seconds: float = 30) -> set[str]:
    question = Question(claim=claim, calls=1)
    subject = subject_of(target, question)
    assert isinstance(subject, DataFunction)
    seen = replay(subject, question, Budget(seconds)).findings
    for probe in subject.probes:
        seen += length_probe(subject, probe, question, Budget(10)) if probe.kind == "length" else []
    return {one.name for one in seen if one.severity == "fault"}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (sound, None),
        (with_bias, None),
        (half_the_noise, "moves-more-than-claimed"),
        (longer_clip, "moves-more-than-claimed"),
        (decay_by_targets, "noise-depends-on-data"),
        (standardised, "moves-more-than-claimed"),
        (as_a_model, None),
        (as_a_bare_model, "moves-more-than-claimed"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_claim_about_one_row_zeroed_out_is_judged_by_how_far_it_moves(target: Any, expected: str | None) -> None:
    found = faults(target)
    assert found == set() if expected is None else expected in found
    assert faults(renamed(target)) == found


def test_a_row_of_zeros_is_no_row_only_where_it_has_no_part() -> None:
    """Not with a bias, whose gradient a row of zeros has too; nor where zero is far from what all rows are compared
    with.
    """
    form = next(one for one in forms() if one.words == "a pair of arrays, rows and targets")

    def plays(function: Any) -> bool:
        trial = DataFunction("", (), fresh=lambda: lambda data, rng: function(*data))
        return is_null(form, 4, trial.one)

    def centred(data: Any) -> Any:
        return np.clip(data[0] - 1.0, -1, 1).sum(0) + np.random.normal(size=4)  # noqa: NPY002

    def mean(data: Any) -> Any:
        clipped = data[0] / np.maximum(1, np.linalg.norm(data[0], axis=1, keepdims=True))
        return clipped.sum(0) / len(data[0]) + np.random.normal(size=4) / len(data[0])  # noqa: NPY002

    assert plays(sound) and plays(mean)
    assert not plays(with_bias) and not plays(centred)


# --- forms --------------------------------------------------------------------------------------------------------


def first_of(data: Any) -> Any:
    x, y = data
    return (x[:4] * y[:4].reshape(-1, 1)).sum() + np.random.normal()  # noqa: NPY002


class Rows(Dataset[Any]):
    pass


def takes_two(x: torch.Tensor, y: torch.Tensor) -> Any:
    return first_of((x.numpy(), y.numpy()))


def takes_a_set(data: Dataset[Any]) -> Any:
    return first_of([torch.stack(part).numpy() for part in zip(*[data[n] for n in range(16)], strict=True)])


def takes_a_loader(loader: DataLoader[Any]) -> Any:
    assert loader.batch_size == 4
    return sum(first_of((x.numpy(), y.numpy())) for x, y in loader)


def takes_clients(clients: list[Any]) -> Any:
    assert isinstance(clients, list) and len(clients) == 4
    return sum(first_of((x.numpy(), y.numpy())) for x, y in clients)


def takes_a_generator(data: Any, rng: np.random.Generator) -> Any:
    return data[0].numpy().mean(0) + rng.normal(size=data[0].shape[1])


def takes_ten_numbers(data: Any) -> Any:
    return torch.nn.Linear(10, 1)(data[0]).sum()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (takes_two, "two tensors"),
        (takes_a_set, "a data set"),
        (takes_a_loader, "a data loader"),
        (takes_clients, "a list of clients' pairs"),
        (takes_a_generator, "a pair of tensors, rows and a column of numbers and a NumPy generator"),
        (takes_ten_numbers, "a pair of tensors"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_data_of_every_form_are_found(target: Any, words: str) -> None:
    found, other = recognises_data(target, Question()), recognises_data(renamed(target), Question())
    assert found is not None and other is not None
    assert found.name.startswith(f"a function of {words}") and found.name == other.name
    assert len(found.pairs) >= 2 and len(found.probes) == 3


def test_targets_are_not_broadcast_against_predictions() -> None:
    def flat(data: Any) -> Any:
        return ((data[0] @ torch.ones(4)) - data[1]).square().mean() + torch.randn(())

    def column(data: Any) -> Any:
        return ((data[0] @ torch.ones(4, 1)) - data[1]).square().mean() + torch.randn(())

    names = [found.name if (found := recognises_data(one, Question())) else "" for one in (flat, column)]
    assert names == [f"a function of a pair of tensors, rows and {kind}" for kind in ("numbers", "a column of numbers")]


def test_what_may_be_called_without_data_is_a_loop() -> None:
    assert loop_like(sound) and not loop_like(takes_two) and not loop_like(lambda: 0) and not loop_like(Rows)


def test_noise_divided_by_the_random_batch_is_found_in_the_steps() -> None:
    """Where both of two rows are drawn the step has half the noise, where one row is alone it never has."""

    def steps(data: Any = None) -> Any:
        rows, weights, models = data[0], np.zeros(data[0].shape[1]), []
        for _ in range(4):
            drawn = np.random.random(len(rows)) < 0.5  # noqa: NPY002
            weights = weights - np.random.normal(0, 2, len(weights)) / max(1, drawn.sum())  # noqa: NPY002
            models.append(weights)
        return models

    claim = Claim(2.9, 1e-5, "run", adjacency="add-or-remove-one")
    said = check_object(steps, Question(claim=claim, calls=1, trials=2000), seconds=25)
    assert "claim-refuted" in {one.name for one in said.faults}, said.findings


# --- which form is asked ------------------------------------------------------------------------------------------


def row_sum(data: Any, rng: Any) -> Any:
    """A sum of clipped rows, without the targets: a list of two layers is taken as well."""
    rows, _ = data
    rows = np.asarray(rows, float)
    rows = rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
    return rows.sum(0) + rng.normal(0, 3.74, rows.shape[1])


def rows_alone(rows: Any, rng: Any) -> Any:
    return row_sum((rows, None), rng)


def layers(update: Any, rng: Any) -> Any:
    assert isinstance(update, list)
    return [layer / max(1.0, np.linalg.norm(layer)) + rng.normal(0, 4, layer.shape) for layer in update]


def of_both(parts: Any, rng: Any) -> Any:
    """Clips rows, whether they are given as one data set or as those of clients."""
    total = 0
    for part in parts:
        rows = np.atleast_2d(part[0] if isinstance(part, tuple) else part)
        total = total + (rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))).sum(0)[:1]
    return total + rng.normal(0, 3.74, 1)


@pytest.mark.parametrize(
    ("target", "unit", "form", "words"),
    [
        (row_sum, None, None, "a pair of"),
        (row_sum, "example", None, "a pair of"),
        (row_sum, None, "update", "a list of NumPy arrays"),
        (rows_alone, None, None, "an array of rows"),
        (layers, None, None, "a list of NumPy arrays"),
        (layers, "client", None, "a list of NumPy arrays"),
        (of_both, "client", None, "a list of clients'"),
        (of_both, "example", None, "a pair of"),
        (of_both, None, "clients", "a list of clients'"),
    ],
)
def test_the_form_is_that_of_the_claims_unit(target: Any, unit: str | None, form: Any, words: str) -> None:
    subject = subject_of(target, Question(claim=Claim(1.0, 1e-5, unit=unit), form=form))
    assert subject is not None and subject.name.startswith(f"a function of {words}"), subject.name


@pytest.mark.parametrize("unit", [None, "example"])
def test_a_sound_sum_of_clipped_rows_is_no_fault(unit: str | None) -> None:
    claim = Claim(1.001, 1e-5, unit=unit)
    said = check_object(row_sum, Question(claim=claim, trials=400), seconds=15)
    assert said.verdict == NO_FAULT, said.findings


@pytest.mark.parametrize("most", [10**9, 1])
def test_targets_that_are_names_of_classes_are_kept_small(most: int) -> None:
    """most: larger names are taken for this one, as losses do that ignore some; a negative one is none."""

    def logistic(data: Any) -> Any:
        rows, wanted = data[0].float(), data[1].long().clamp(max=most)
        gradients = (torch.softmax(torch.zeros(len(rows), 2), 1) - torch.eye(2)[wanted])[:, :1] * rows
        total = (gradients / gradients.norm(dim=1, keepdim=True).clamp(min=1)).sum(0)
        return total + 4.0 * torch.randn(len(total))

    said = check_object(logistic, Question(claim=Claim(1.0, 1e-5, adjacency="zero-out"), trials=400), seconds=15)
    assert said.verdict == NO_FAULT and "raises" not in {one.name for one in said.findings}, said.findings


@pytest.mark.parametrize("middle", [np.median, lambda sizes: np.sort(sizes)[7]])
def test_of_two_telling_places_the_one_that_tells_most_is_kept(middle: Any) -> None:
    """A raw median of the rows' lengths as the clip, which one row moves from 1,000 to 500, or from 500 to 1."""
    form = next(one for one in forms() if one.words == "a pair of arrays, rows and targets")

    def clipped_sum(data: Any, seed: int) -> Played:
        clip = middle(np.linalg.norm(data[0][0], axis=1))
        return Played({"released": clip * np.random.default_rng(seed).normal(0, 40, 4)})

    (pair,) = telling_rows(form, 4, clipped_sum)
    one, other = (np.linalg.norm(clipped_sum(side, 1).flat()) for side in (pair.left, pair.right))
    assert max(one / other, other / one) > 400


# --- clients ------------------------------------------------------------------------------------------------------


def federated(
    clients: list[Any], divide: str = "by a constant", clip: str = "of a client", counted: bool = False
) -> Any:
    """A round of clients' clipped gradients of a linear model; the noise is of four clips, for the sum."""
    total = torch.zeros(clients[0][0].shape[1])
    for rows, wanted in clients:
        gradients = -wanted.reshape(-1, 1) * rows
        if clip == "of a client":
            gradients = gradients.sum(0, keepdim=True)
        total += (gradients / gradients.norm(dim=1, keepdim=True).clamp(min=1)).sum(0)
    many = 4 if divide == "by a constant" else len(clients)
    released = total / many + torch.randn(len(total))
    return (released, len(clients)) if counted else released


def by_their_number(clients: list[Any]) -> Any:
    """Far from 0, a mean of all but one is moved by twice of what the noise is for."""
    return federated(clients, divide="by their number")


def by_example(clients: list[Any]) -> Any:
    return federated(clients, clip="of an example")


def with_their_number(clients: list[Any]) -> Any:
    return federated(clients, counted=True)


def constant_divisor(clients: list[Any]) -> Any:
    return federated(clients)


@pytest.mark.parametrize(
    ("target", "adjacency", "unit", "expected"),
    [
        (constant_divisor, "add-or-remove-one", "client", None),
        (by_their_number, "add-or-remove-one", "client", "moves-more-than-claimed"),
        (with_their_number, "add-or-remove-one", "client", "number-without-noise"),
        (by_example, "add-or-remove-one", "client", "moves-more-than-claimed"),
        (by_example, "add-or-remove-one", "example", None),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_client_is_taken_out_of_a_list_where_the_claim_is_about_that(
    target: Any, adjacency: str, unit: str, expected: str | None
) -> None:
    """A sum of norm 1 under noise of 4: epsilon 0.96 for one client there or not."""
    claim = Claim(1.0, 1e-5, adjacency=adjacency, unit=unit)
    found = faults(target, claim, seconds=4)
    assert found == set() if expected is None else expected in found
