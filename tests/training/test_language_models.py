"""Models of text: what they compute, their per-example gradients, both trainers, and runs from start to report."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import rows_of, summary_of
from text_data import TOKENS, VOCABULARY, text_dataset
from torch import Tensor, nn

import fedpriv.client.build
import fedpriv.data.load
from fedpriv.common.errors import DataError, OptionError
from fedpriv.config.compose import compose
from fedpriv.config.schema import LocalConfig, ModelConfig
from fedpriv.mechanisms.noise import KEPT_BACK
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.mechanisms.tasks import NextToken, Task, of_classes
from fedpriv.runs.start import start_run
from fedpriv.training.language_models import Bag, Gru, Text
from fedpriv.training.models import build_model, resolve_model
from fedpriv.training.resident import Resident
from fedpriv.training.sequential import FlatModel, LocalData, SequentialTrainer, Training, ids_of, inputs_of
from fedpriv.training.vectorisable import obstacle
from fedpriv.training.vectorised import VectorisedTrainer

NAMES = ("bag", "gru", "transformer")
LOCAL = LocalConfig(epochs=2, steps=None, batch_size=7, lr=0.1, momentum=0.0, sampler="shuffle")


def task_of(each: bool) -> Task:
    return NextToken(tuple(map(str, range(VOCABULARY))), TOKENS) if each else of_classes(("a", "b", "c"))


def model_of(name: str, each: bool = False, **options: Any) -> FlatModel:
    config, task = ModelConfig(name=name, **{"embedding": 8, "hidden": 8, **options}), task_of(each)  # type: ignore[arg-type]
    module = build_model(config, (TOKENS,), task.num_outputs, 1, Text(VOCABULARY, each))
    return FlatModel(module, task=task, vocabulary=VOCABULARY)


def texts(n: int, each: bool = False) -> tuple[Tensor, Tensor]:
    """The last one is empty, the one before it full."""
    dataset = text_dataset(each, 2 * n)
    ids = inputs_of(dataset, dataset.train, np.arange(n))
    ids[-1], ids[-2] = 0, 5
    return ids, torch.from_numpy(dataset.train.targets[:n])


both = pytest.mark.parametrize("each", [False, True], ids=["class", "next token"])
models = pytest.mark.parametrize("name", NAMES)


@both
@models
@pytest.mark.parametrize("mode", ["bookkeeping", "vmap"])
def test_clipped_sums_are_those_of_explicit_gradients(name: str, each: bool, mode: str) -> None:
    model, (ids, targets) = model_of(name, each), texts(6, each)
    way = PerExampleGradients(model.module, mode, block=4, task=model.task, vocabulary=VOCABULARY)
    way.settle((TOKENS,), torch.device("cpu"))
    singles = []
    for one, of in zip(ids, targets, strict=True):
        loss = model.task.losses(model.module(one[None]), of[None]).sum()
        parts = torch.autograd.grad(loss, list(model.module.parameters()))
        singles.append(torch.cat([part.flatten() for part in parts]).double())
    norms = torch.stack(singles).norm(dim=1)
    bound = float(norms.median())
    factors = torch.clamp(bound * (1 - KEPT_BACK) / norms.clamp(min=1e-30), max=1.0)
    expected = (torch.stack(singles) * factors[:, None]).sum(0)
    found = way.clipped_sum(ids, targets, bound)
    assert way.mode == mode and way.physical == 4
    assert torch.allclose(found.norms, norms, rtol=1e-4, atol=1e-7)
    assert float((found.total - expected).norm()) <= 1e-5 * float(expected.norm())


@both
@models
def test_one_text_moves_a_sum_by_the_bound_at_most(name: str, each: bool) -> None:
    """At parameters that a server would choose: large ones, at which rounding is large too."""
    model, (ids, targets), bound = model_of(name, each), texts(9, each), 1e-3
    way = PerExampleGradients(model.module, block=4, task=model.task, vocabulary=VOCABULARY)
    way.settle((TOKENS,), torch.device("cpu"))
    model.theta.mul_(30.0)
    whole = way.clipped_sum(ids, targets, bound).total
    assert float(whole.norm()) > bound
    for k in range(9):
        others = torch.arange(9) != k
        assert float((whole - way.clipped_sum(ids[others], targets[others], bound).total).norm()) <= bound


def test_every_model_gets_the_fast_way_and_persons_rows_are_formed() -> None:
    for name in NAMES:
        model, (ids, targets) = model_of(name), texts(6)
        trainer = SequentialTrainer(model, LOCAL)
        assert trainer.per_example((TOKENS,)).mode == "bookkeeping"
    unit = torch.tensor([0, 0, 1, 1, 1, 2])
    model = model_of("bag")
    found = SequentialTrainer(model, LOCAL).clipped_sum(model.theta, LocalData(ids, targets % 2, unit), 1e9)
    alone = [float(_gradient(model, ids[unit == k], targets[unit == k] % 2).norm()) for k in range(3)]
    assert found.norms.tolist() == pytest.approx(alone, rel=1e-4)


def _gradient(model: FlatModel, ids: Tensor, targets: Tensor) -> Tensor:
    model.grad.zero_()
    model.task.mean_loss(model(ids), targets).backward()  # type: ignore[no-untyped-call]
    return model.grad.clone()


@models
def test_padding_behind_a_text_changes_nothing(name: str) -> None:
    model, ids = model_of(name), torch.randint(1, VOCABULARY, (3, TOKENS), generator=torch.Generator().manual_seed(0))
    ids[:, 5:] = 0
    outputs, body = model(ids), model.module[0]  # type: ignore[index]
    body.tokens = 5
    assert torch.allclose(model(ids[:, :5]), outputs, atol=1e-6)
    body.tokens = TOKENS
    with torch.no_grad():  # noise moves the row of padding too
        model.module[0].words.weight[0] += 7.0  # type: ignore[index, union-attr]
    assert torch.allclose(model(ids), outputs, atol=1e-6)


@models
def test_an_output_of_a_token_follows_from_it_and_those_before_it(name: str) -> None:
    model = model_of(name, each=True)
    ids = torch.randint(1, VOCABULARY, (2, TOKENS), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[:, 7:] = ids[:, 7:] % (VOCABULARY - 1) + 1
    before, after = model(ids), model(changed)
    assert before.shape == (2, TOKENS, VOCABULARY)
    assert torch.allclose(before[:, :7], after[:, :7], atol=1e-6) and not torch.allclose(before[:, 7:], after[:, 7:])


def test_a_bag_is_the_sum_over_the_square_root_of_the_number() -> None:
    model = model_of("bag", embedding=0)
    assert [type(layer) for layer in model.module.modules()][1:] == [Bag, nn.Embedding]
    table = torch.randn(VOCABULARY, 3, generator=torch.Generator().manual_seed(0))
    model.load(table.flatten())
    ids = torch.tensor([[4, 4, 9, *[0] * (TOKENS - 3)], [0] * TOKENS])
    assert torch.allclose(model(ids)[0], (2 * table[4] + table[9]) / math.sqrt(3), atol=1e-6)
    assert not model(ids)[1].any()


def test_the_gru_is_torchs() -> None:
    torch.manual_seed(0)
    ours, known = Gru(Text(VOCABULARY, True), TOKENS, 5, 7), nn.GRU(5, 7, batch_first=True)
    for layer, place in ((ours.inputs, "ih"), (ours.state, "hh")):
        layer.weight.data.copy_(getattr(known, f"weight_{place}_l0"))
        layer.bias.data.copy_(getattr(known, f"bias_{place}_l0"))
    ids = torch.randint(1, VOCABULARY, (3, TOKENS))
    assert torch.allclose(ours(ids), known(ours.words(ids))[0], atol=1e-6)


@both
@models
def test_a_cohort_trains_as_its_clients_do_alone(name: str, each: bool) -> None:
    model, (ids, targets) = model_of(name, each), texts(20, each)
    assert obstacle(model, (TOKENS,)) is None
    theta, requests = model.theta.clone(), []
    for client, rows in enumerate((slice(0, 9), slice(9, 20))):
        requests.append(Training(theta, LocalData(ids[rows], targets[rows]), np.random.default_rng(client)))
    alone = SequentialTrainer(model, LOCAL).train_all(requests)
    again = [Training(one.theta, one.data, np.random.default_rng(k)) for k, one in enumerate(requests)]
    together = VectorisedTrainer(model, LOCAL).train_all(again)
    for one, other in zip(alone, together, strict=True):
        assert torch.allclose(one.update, other.update, atol=1e-5) and one.loss == pytest.approx(other.loss, rel=1e-4)


def test_ids_are_read_as_int64_and_refused_outside_the_vocabulary() -> None:
    dataset, rows = text_dataset(), np.array([3, 1])
    read = inputs_of(dataset, dataset.train, rows)
    assert read.dtype == torch.int64 and np.array_equal(read.numpy(), dataset.train.inputs[rows])
    kept = Resident(dataset.train, (), (), torch.device("cpu"), VOCABULARY).chosen(rows)
    assert torch.equal(kept.inputs, read)
    for wrong in (VOCABULARY, -1):
        with pytest.raises(DataError, match=rf"token ids from .*{wrong}.*allowed: 0 \(padding\) to {VOCABULARY - 1}"):
            ids_of(np.array([[1, wrong]]), VOCABULARY)


@pytest.mark.parametrize(
    ("config", "text", "words"),
    [
        ({"name": "cnn"}, Text(9), "model=cnn: .*allowed: auto, bag, gru, transformer, custom"),
        ({"name": "bag"}, None, "model=bag: reads text; allowed: auto, linear.*cnn"),
        ({"name": "transformer", "heads": 5}, Text(9), "model.heads=5: must divide model.embedding, 32"),
        ({"name": "gru", "embedding": 0}, Text(9), "model.embedding=0: .*at least 1"),
    ],
)
def test_a_model_of_something_else_is_refused(config: dict[str, Any], text: Text | None, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        build_model(ModelConfig(**config), (TOKENS,) if text else (1, 8, 8), 3, 0, text)
    assert resolve_model(ModelConfig(name="auto"), (TOKENS,), text=Text(9)).name == "bag"


@pytest.mark.parametrize("name", ["gru", "cnn"])
def test_what_vectors_allow_is_what_they_take(name: Any) -> None:
    with pytest.raises(OptionError, match=r"allowed: auto, linear, softmax, mlp, custom$"):
        build_model(ModelConfig(name=name), (TOKENS,), 3, 0)


# --- runs --------------------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def started(each: bool, *options: str) -> dict[str, Any]:
        monkeypatch.setattr(fedpriv.data.load, "load_table", lambda *_: text_dataset(each))
        monkeypatch.setattr(fedpriv.client.build, "_layouts", {})
        small = ("dataset=breast_cancer", "num_clients=4", "clients_per_round=4", "num_rounds=2", "engine=inprocess")
        start_run(compose([*small, "local.batch_size=20", "operations.report=false", *options]), tmp_path / "run")
        folder = tmp_path / "run"
        return summary_of(folder) | {"errors": [row["errors"] for row in rows_of(folder)]}

    return started


def test_a_gru_learns_the_next_token(run: Callable[..., dict[str, Any]]) -> None:
    found = run(True, "strategy=fedavg", "model=gru", "local.lr=1", "local.epochs=3", "num_rounds=3")
    assert found["metrics"]["leading"] == "perplexity"
    assert found["metrics"]["final"]["perplexity"] == pytest.approx(math.exp(found["loss"]["final"]))
    assert found["metrics"]["final"]["perplexity"] < 9 and found["accuracy"]["final"] > 0.6


@pytest.mark.parametrize(
    ("each", "options"),
    [
        (False, ("strategy=dpsgd", "model=transformer", "partition.test_fraction=0.2", "evaluate.clients=true")),
        (True, ("strategy=dpsgd", "partition.test_fraction=0.2", "evaluate.clients=true")),
        (False, ("strategy=fedavg", "engine.trainer=vectorised", "local.lr=0.5")),
        (True, ("strategy=fedavg", "engine.faults=[{round: 2, client: 1, kind: non_finite_update}]")),
        (False, ("strategy=dpsgd", "engine.faults=[{round: 2, client: 1, kind: non_finite_update}]")),
    ],
    ids=["clipped", "clipped tokens", "vectorised", "a broken update", "a broken gradient"],
)
def test_text_runs(each: bool, options: tuple[str, ...], run: Callable[..., dict[str, Any]]) -> None:
    found = run(each, *options)
    assert found["errors"] == [{}, {}]  # a broken update is one that was released
    assert math.isfinite(found["loss"]["final"]) and 0 < found["accuracy"]["final"] < 1
    assert found["model"] == ("transformer" if "model=transformer" in options else "bag")
    if "evaluate.clients=true" in options:
        assert 0 <= found["accuracy"]["personalised"] <= 1
