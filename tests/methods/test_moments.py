"""One-shot moments: vectors of length 1, heads that libraries give too, noise that the model knows, refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Run
from safetensors.torch import load_file
from sklearn.datasets import load_diabetes, load_digits, load_wine
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import NearestCentroid

from clients.moments import _blocks
from fedpriv.__main__ import main
from fedpriv.client.build import make_client
from fedpriv.common.errors import OptionError
from fedpriv.common.run_files import mapping_in
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.clipped_sums import excess
from fedpriv.mechanisms.scaling import clipped_rows
from fedpriv.training.moments import SHARES, Moments, bound_of, units, vectors
from strategies.moments import Moments as MomentsServer

HEADS = ("auto", "lda", "ridge", "mean")
RUN = ("strategy=moments", "model=moments", "dataset=digits", "dataset.train_examples=null", "num_clients=5")
RUN = (*RUN, "clients_per_round=5", "num_rounds=1", "strategy.server.min_replies=5", "privacy.delta=1e-5")


def scaled(inputs: np.ndarray) -> torch.Tensor:
    low, high = inputs.min(0), inputs.max(0)
    return torch.tensor(2 * (inputs - low) / np.maximum(high - low, 1e-9) - 1, dtype=torch.float32)


def model_of(rows: torch.Tensor, targets: torch.Tensor, outputs: int, head: Any, noise: float = 0.0) -> Moments:
    """As a run without noise makes it; noise: what it is told of noise."""
    bound = bound_of(None, rows.shape[1])
    model, total = Moments(rows.shape[1], outputs, bound, head), vectors(rows, targets, outputs, bound, head).sum(0)
    whole = torch.cat([total, torch.tensor([noise])])
    torch.nn.utils.vector_to_parameters(whole.float(), model.parameters())
    return model


# --- a row's vector --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("outputs", [1, 2, 10])
def test_no_row_has_a_vector_longer_than_one(head: Any, outputs: int) -> None:
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(500, 7, generator=random) * 10.0 ** torch.randint(-30, 38, (500, 1), generator=random)
    rows[::50, 0], rows[7::50, 1] = math.inf, math.nan
    targets = torch.randint(outputs, (500,), generator=random)
    if outputs == 1:
        targets = torch.randn(500, generator=random) * 10.0 ** torch.randint(-3, 38, (500,), generator=random)
        targets[3], targets[5] = math.nan, math.inf
    found = vectors(rows, targets, outputs, bound_of(None, 7), head)
    lengths = torch.linalg.vector_norm(found, dim=1)
    assert torch.isfinite(found).all() and (lengths <= 1 + 1e-12).all()
    if outputs > 1:  # a row beyond the bound has all of it
        assert float(lengths.max()) > 1 - 1e-9
    assert found.shape[1] == sum(part.numel() for part in Moments(7, outputs, 1.0, head).parameters()) - 1


def test_the_parts_of_a_vector_are_what_the_model_reads_back() -> None:
    rows = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    targets, u = torch.arange(30) % 3, units(rows, 0.8)
    model = model_of(rows, targets, 3, "lda")
    model.bound = 0.8
    torch.nn.utils.vector_to_parameters(
        torch.cat([vectors(rows, targets, 3, 0.8, "lda").sum(0), torch.zeros(1)]).float(), model.parameters()
    )
    assert torch.allclose(model._second(), u.T @ u, atol=1e-5)
    per_class = torch.stack([u[targets == number].sum(0) for number in range(3)])
    assert torch.allclose(model.first.double() / math.sqrt(SHARES["lda"]), per_class, atol=1e-5)


def test_blocks_hold_whole_persons() -> None:
    assert _blocks([1] * 7, 3) == [3, 3, 1]
    assert _blocks([2, 2, 5, 1], 4) == [4, 5, 1]
    assert _blocks([], 4) == [0]


# --- heads without noise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [load_digits, load_wine])
def test_lda_is_that_of_scikit_learn(load: Any) -> None:
    data = load()
    rows, targets = scaled(data.data), torch.from_numpy(data.target)
    kept = rows.std(0) > 0.05
    rows = rows[:, kept]
    model = model_of(rows, targets, len(data.target_names), "lda")
    short = units(rows, model.bound)[:, 1:].numpy()
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(short, data.target)
    ours = model(rows).softmax(1).detach().numpy()
    assert (ours.argmax(1) == theirs.predict(short)).mean() > 0.995
    assert np.abs(ours - theirs.predict_proba(short)).mean() < 0.005


def test_the_mean_head_is_the_nearest_centroid_and_ridge_is_least_squares() -> None:
    wine = load_wine()
    rows, targets = scaled(wine.data), torch.from_numpy(wine.target)
    model = model_of(rows, targets, 3, "mean")
    short = units(rows, model.bound)[:, 1:].numpy()
    theirs = NearestCentroid(priors="empirical").fit(short, wine.target).predict(short)
    assert (model(rows).argmax(1).numpy() == theirs).mean() > 0.97
    data = load_diabetes()
    rows, wanted = scaled(data.data), scaled(data.target[:, None])[:, 0]
    line = LinearRegression().fit(units(rows, bound_of(None, 10))[:, 1:].numpy(), wanted.numpy())
    fitted = line.predict(units(rows, bound_of(None, 10))[:, 1:].numpy())
    assert np.abs(model_of(rows, wanted, 1, "auto")(rows)[:, 0].detach().numpy() - fitted).max() < 1e-3


def test_noise_decides_between_the_heads() -> None:
    """The same sum: told of much noise, auto is the nearest mean; told of none, LDA."""
    wine = load_wine()
    rows, targets = scaled(wine.data), torch.from_numpy(wine.target)
    for noise, same in ((1e-3, "lda"), (20.0, "mean")):
        auto, other = model_of(rows, targets, 3, "auto", noise), model_of(rows, targets, 3, "lda", noise)
        other.head = same
        assert torch.equal(auto(rows), other(rows))


def test_new_numbers_are_solved_anew() -> None:
    wine = load_wine()
    rows, targets = scaled(wine.data), torch.from_numpy(wine.target)
    model = model_of(rows, targets, 3, "lda")
    before = model(rows)
    torch.nn.utils.vector_to_parameters(
        torch.nn.utils.parameters_to_vector(model.parameters()).flip(0), model.parameters()
    )
    assert not torch.equal(model(rows), before)


# --- runs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["ddgauss", "skellam", "central", "local"])
def test_the_model_knows_the_noise_in_its_numbers(form: str, run: Run) -> None:
    noisy, silent = (
        load_file(
            run(*RUN, f"strategy.client.form={form}", f"strategy.client.noise_multiplier={sigma}") / "model.safetensors"
        )
        for sigma in (2.0, 1e-3)
    )
    apart = torch.cat([(noisy[name] - silent[name]).flatten() for name in noisy if not name.endswith("noise")])
    (told,) = (value for name, value in noisy.items() if name.endswith("noise"))
    assert float(told) == pytest.approx(2.0 * (1 if form == "central" else math.sqrt(5)))
    assert float(apart.double().square().mean().sqrt()) == pytest.approx(float(told), rel=0.05)


def test_one_round_learns_digits_and_more_rounds_are_a_mean(run: Run) -> None:
    once = mapping_in(run(*RUN, "privacy.target_epsilon=2"), "summary.json")
    assert once["rounds"] == 1 and once["privacy"]["verified_epsilon"] <= 2 and once["accuracy"]["final"] > 0.8
    several = run(*RUN, "strategy.client.noise_multiplier=3", "num_rounds=4")
    (told,) = (value for name, value in load_file(several / "model.safetensors").items() if name.endswith("noise"))
    assert float(told) == pytest.approx(3 * math.sqrt(5 / 4))


def test_masks_give_the_sum_of_the_open_bit_for_bit(run: Run) -> None:
    told = [load_file(run(*RUN, f"strategy.secure_sum={who}") / "model.safetensors") for who in ("ideal", "protocol")]
    assert all(torch.equal(told[0][name], told[1][name]) for name in told[0])


def test_a_site_sends_the_clipped_sum_of_its_rows_in_blocks_of_persons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the blocks, and no person moves it by more than 1."""
    rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(2)) * 5
    unit, targets = torch.arange(40) % 9, torch.arange(40) % 2
    found = vectors(rows, targets, 2, 1.0, "lda")
    whole = clipped_rows(found, 1.0, unit).total
    order = torch.argsort(unit, stable=True)
    for most in (1, 7, 100):
        parts = order.split(_blocks(torch.unique(unit, return_counts=True)[1].tolist(), most))
        assert torch.allclose(sum(clipped_rows(found[one], 1.0, unit[one]).total for one in parts), whole)
    for person in range(9):
        rest = clipped_rows(found[unit != person], 1.0, unit[unit != person]).total
        assert float(torch.linalg.vector_norm(whole - rest)) <= 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("strategy=moments model=linear dataset=digits", "model=linear: strategy=moments makes its model of one sum"),
        ("strategy=fedavg model=moments dataset=digits", "model=moments: its parameters are sums over rows"),
        ("strategy=moments dataset=digits model.head=qda", "model.head=qda: allowed: auto, lda, ridge or mean"),
        ("strategy=moments dataset=digits model.bound=0", "model.bound=0: must be more than 0"),
        ("strategy=moments dataset=digits strategy.server.optimizer=adam", "the noisy sum is the model"),
    ],
)
def test_what_has_no_moments_is_refused(options: str, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *options.split()]) == 2
    assert words in capfd.readouterr().err


@pytest.mark.parametrize(
    ("task", "words"), [("multilabel", "this task is multilabel"), ("next_token", "this task is next_token")]
)
def test_other_tasks_are_refused_before_a_round(task: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(compose(RUN))
    monkeypatch.setattr(type(worker.data.dataset.task), "name", task)
    with pytest.raises(OptionError, match=words):
        _ = worker.model


@pytest.mark.parametrize("head", ["lda", "mean"])
def test_a_head_for_classes_is_refused_where_the_target_is_a_number(head: str) -> None:
    options = [option for option in RUN if not option.startswith("dataset")]
    with pytest.raises(
        OptionError, match=f"model.head={head}: is for classes; of a number as the target: auto or ridge"
    ):
        _ = Worker(compose([*options, "dataset=diabetes", f"model.head={head}"])).model


def test_more_rows_than_their_sum_is_proved_for_cost_more() -> None:
    client = make_client(compose(RUN))
    assert client.excess(2**16) == 0 and client.excess(10**7) == excess(10**7) > 0.05  # type: ignore[attr-defined]
    assert MomentsServer.excess(None, 10**7) == excess(10**7)  # type: ignore[arg-type]
