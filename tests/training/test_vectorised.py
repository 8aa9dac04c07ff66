"""The vectorised trainer against the sequential one: the same batches, the same ledgers, updates within rounding."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import SMALL, Run, ledger_of, result_of, rows_of
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.config.schema import LocalConfig, ModelConfig
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.step_gradients import Probes, Sharpness, StepGradient, probes_of
from fedpriv.runs import preparation
from fedpriv.runs.other_options import config_for_rerun
from fedpriv.runs.preparation import choose_trainer, resolve
from fedpriv.runs.start import resume_run, start_run
from fedpriv.training.models import build_model
from fedpriv.training.sequential import Clipping, FlatModel, LocalData, SequentialTrainer, Training
from fedpriv.training.stacked_gradients import Chain, Mapped
from fedpriv.training.vectorisable import obstacle
from fedpriv.training.vectorised import VectorisedTrainer

SHAPES = {"linear": (1, 6, 6), "mlp": (1, 6, 6), "cnn": (1, 16, 16)}
SIZES = (30, 0, 5, 17, 1, 30, 8)  # of clients' data


def model_of(name: str) -> FlatModel:
    return FlatModel(build_model(ModelConfig(name=name), SHAPES[name], 10, 0))  # type: ignore[arg-type]


def data_of(name: str) -> list[LocalData]:
    random = torch.Generator().manual_seed(1)
    return [
        LocalData(torch.randn(size, *SHAPES[name], generator=random), torch.randint(0, 10, (size,), generator=random))
        for size in SIZES
    ]


def rng(client: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(client))


# --- one computation -------------------------------------------------------------------------------------


@pytest.mark.rotates(2)
@pytest.mark.parametrize("sampler", ["shuffle", "poisson"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("proximal_mu", [0.0, 0.5])
@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_a_cohort_trains_as_its_clients_do_alone(name: str, sampler: str, momentum: float, proximal_mu: float) -> None:
    """Clients of unequal size, one without data, some with a drift; three epochs, so that what is added matters."""
    config = LocalConfig(epochs=3, batch_size=4, lr=0.1, momentum=momentum, sampler=sampler)  # type: ignore[arg-type]
    model = model_of(name)
    start = model.theta.clone()
    alone, together = SequentialTrainer(model, config), VectorisedTrainer(model, config)
    thetas = [start * (1 + client / 10) for client in range(len(SIZES))]  # clients that keep layers start differently
    asked = [(thetas[client], data, client) for client, data in enumerate(data_of(name))]
    random = torch.Generator().manual_seed(0)  # drawn anew each time, a sum once in a while crosses a ReLU's edge
    drifts = [0.01 * torch.randn(start.shape, generator=random) * (client % 3 > 0) for client in range(len(SIZES))]
    expected = [
        alone.train(Training(theta, data, rng(client), proximal_mu, drifts[client])) for theta, data, client in asked
    ]
    found = together.train_all(
        [Training(theta, data, rng(client), proximal_mu, drifts[client]) for theta, data, client in asked]
    )
    for one, other in zip(expected, found, strict=True):
        assert float((one.update - other.update).norm()) <= 2e-5 * float(one.update.norm())
        assert other.loss == pytest.approx(one.loss, rel=1e-4, abs=1e-6)
    assert min(float(one.update.norm()) for one, size in zip(expected, SIZES, strict=True) if size > 4) > 1e-2
    assert torch.equal(found[1].update, torch.zeros_like(start)) and found[1].loss == 0.0


def test_the_generators_are_left_where_the_sequential_trainer_leaves_them() -> None:
    config = LocalConfig(epochs=2, batch_size=4, lr=0.1, momentum=0.0, sampler="poisson")
    model, data = model_of("linear"), data_of("linear")
    left = []
    for trainer in (SequentialTrainer(model, config), VectorisedTrainer(model, config)):
        own = [rng(client) for client in range(3)]
        trainer.train_all([Training(model.theta.clone(), some, one) for one, some in zip(own, data, strict=False)])
        left.append([generator.random() for generator in own])
    assert left[0] == left[1]


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_clipped_sums_of_a_cohort_are_those_of_its_clients(name: str) -> None:
    """Different bounds; one example is broken and contributes nothing, whatever its neighbours are."""
    config = LocalConfig(epochs=1, batch_size=4, lr=0.1, momentum=0.0, sampler="poisson")
    model, data = model_of(name), data_of(name)
    data[3].inputs[2, 0, 1, 1] = float("inf")
    theta = model.theta.clone()
    alone, together = SequentialTrainer(model, config), VectorisedTrainer(model, config)
    bounds = [0.5 + client for client in range(len(SIZES))]
    expected = [alone.clipped_sum(theta, some, bound) for some, bound in zip(data, bounds, strict=True)]
    found = together.clipped_sums([Clipping(theta, some, bound) for some, bound in zip(data, bounds, strict=True)])
    for one, other in zip(expected, found, strict=True):
        assert torch.allclose(one.total, other.total, atol=1e-5)
        assert torch.allclose(one.norms, other.norms, rtol=1e-5, equal_nan=True)
        assert other.loss == pytest.approx(one.loss, rel=1e-5)
    assert not torch.isfinite(found[3].norms[2]) and float(found[3].total.norm()) > 0.1
    clipped = [int((one.norms > bound).sum()) for one, bound in zip(expected, bounds, strict=True)]
    assert sum(clipped) > 3  # bounds that bind


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_norms_of_a_cohort_are_those_of_autograd_and_no_sum_is_longer(name: str) -> None:
    """Dark examples too, whose gradients are those of biases almost alone."""
    config = LocalConfig(epochs=1, batch_size=4, lr=0.1, momentum=0.0, sampler="poisson")
    model, (data, *_) = model_of(name), data_of(name)
    data.inputs[:10] *= 0.01
    module = build_model(ModelConfig(name=name), SHAPES[name], 10, 0)
    expected = []
    for image, label in zip(data.inputs, data.targets, strict=True):
        loss = functional.cross_entropy(module(image.unsqueeze(0)), label.unsqueeze(0))
        parts = torch.autograd.grad(loss, [*module.parameters()])
        expected.append(torch.cat([part.flatten() for part in parts]).double())
    trainer, theta, gradients = VectorisedTrainer(model, config), model.theta.clone(), torch.stack(expected)
    (found,) = trainer.clipped_sums([Clipping(theta, data, 0.5)])
    assert torch.allclose(found.norms, gradients.norm(dim=1), rtol=1e-5)
    assert torch.allclose(
        found.total, (gradients * (0.5 / gradients.norm(dim=1).clamp(min=0.5)).unsqueeze(1)).sum(0), atol=0.02
    )
    for row in range(12):
        (one,) = trainer.clipped_sums([Clipping(theta, LocalData(data.inputs[[row]], data.targets[[row]]), 0.1)])
        assert 0.09 < float(one.total.norm()) <= 0.1


def test_a_client_that_diverges_does_not_touch_its_neighbours() -> None:
    config = LocalConfig(epochs=1, batch_size=4, lr=0.1, momentum=0.9, sampler="shuffle")
    model, data = model_of("mlp"), data_of("mlp")
    trainer, theta = VectorisedTrainer(model, config), model.theta.clone()

    def updates() -> list[Tensor]:
        asked = [Training(theta, some, rng(client)) for client, some in enumerate(data)]
        return [result.update for result in trainer.train_all(asked)]

    before = updates()
    data[0].inputs[:] = float("nan")
    after = updates()
    assert not torch.isfinite(after[0]).any()
    assert all(torch.equal(one, other) for one, other in zip(before[1:], after[1:], strict=True))


def test_outside_a_cohort_it_is_the_sequential_trainer() -> None:
    config = LocalConfig(epochs=1, batch_size=4, lr=0.1, momentum=0.0, sampler="shuffle")
    model, data = model_of("mlp"), data_of("mlp")[0]
    theta = model.theta.clone()
    found = [
        kind(model, config).train(Training(theta, data, rng(1))) for kind in (SequentialTrainer, VectorisedTrainer)
    ]
    assert torch.equal(found[0].update, found[1].update)


# --- which models ----------------------------------------------------------------------------------------


def named(**layers: nn.Module) -> FlatModel:
    module = nn.Sequential()
    for name, layer in layers.items():
        module.add_module(name, layer)
    return FlatModel(module)


class _BatchMean(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images - images.mean(0)


class _Two(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        if len(images) < 2:
            raise ValueError("too few")
        return images


class _Branch(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images * 2 if images.sum() > 0 else images


def test_chains_are_recognised_and_everything_else_is_mapped() -> None:
    for name, kind in (("linear", Chain), ("mlp", Chain), ("cnn", Mapped)):
        config = LocalConfig(epochs=1, batch_size=4, lr=0.1, momentum=0.0, sampler="shuffle")
        assert type(VectorisedTrainer(model_of(name), config).batched) is kind
    for layers in (
        [nn.Linear(4, 3)],  # pictures are not flattened
        [nn.Flatten(), nn.Linear(4, 3), nn.Tanh()],
        [nn.Flatten(), nn.Linear(4, 3), nn.ReLU()],  # logits behind an activation
        [nn.Flatten(0), nn.Linear(4, 3)],
    ):
        assert Chain.of(nn.Sequential(*layers)) is None


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.Dropout(0.5), "layer odd is Dropout"),
        (_Branch(), "layer odd (_Branch) fails under torch.func.vmap"),
        (_BatchMean(), "examples depend on each other"),
        (nn.Linear(9, 9).requires_grad_(False), "layer odd has parameters that are not trained"),
        (nn.Tanh(), None),
    ],
)
def test_models_that_cannot_be_trained_together_are_named(layer: nn.Module, words: str | None) -> None:
    model = named(flat=nn.Flatten(), odd=layer, head=nn.Linear(9, 3))
    before = model.theta.clone()
    found = obstacle(model, (1, 3, 3))
    assert found is None if words is None else words in str(found)
    assert torch.equal(model.theta, before)


def model_with_dropout(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return named(flat=nn.Flatten(), drop=nn.Dropout(0.1), head=nn.Linear(int(np.prod(shape)), classes)).module


def test_what_cannot_be_vectorised_is_refused_in_words_and_auto_goes_on_without() -> None:
    dropout = ["model=custom", "model.path=test_vectorised.model_with_dropout"]
    with pytest.raises(OptionError, match=r"engine\.trainer.*layer drop is Dropout.*allowed: auto, sequential"):
        resolve(compose([*SMALL, *dropout, "engine.trainer=vectorised"]), None)
    config, worker, _ = resolve(compose([*dropout, "engine=inprocess"]), None)
    assert config.engine.trainer == "sequential" and type(worker.trainer) is SequentialTrainer
    for options in (["engine=flower"], ["strategy=dpsgd", "model=custom", "model.path=test_vectorised.tanh_model"]):
        with pytest.raises(OptionError, match=r"engine\.trainer"):
            resolve(compose([*SMALL, *options, "engine.trainer=vectorised"]), None)


def model_of_batch_means(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return named(flat=nn.Flatten(), odd=_BatchMean(), head=nn.Linear(int(np.prod(shape)), classes)).module


def model_that_wants_two(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return named(flat=nn.Flatten(), odd=_Two(), head=nn.Linear(int(np.prod(shape)), classes)).module


def test_a_model_whose_outputs_depend_on_the_batch_is_named_in_the_summary(run: Run) -> None:
    for name, words in (
        ("model_of_batch_means", "says of an example depends on those beside it"),
        ("model_that_wants_two", "says of an example alone raises ValueError"),
        ("model_with_dropout", None),
    ):
        path = f"test_vectorised.{name}"
        folder = run(*SMALL, "model=custom", f"model.path={path}", "engine=inprocess")
        told = json.loads((folder / "summary.json").read_text())["note"]
        assert (f"model.path={path}: what the model {words}" if words else "None") in str(told)


def tanh_model(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return named(flat=nn.Flatten(), hidden=nn.Tanh(), head=nn.Linear(int(np.prod(shape)), classes)).module


# --- whole runs ------------------------------------------------------------------------------------------

PARTIAL = ("num_clients=6", "clients_per_round=4", "partition=dirichlet", "partition.min_examples=13")

METHODS = {
    "fedavg": (),
    "fedprox": ("local.momentum=0.5",),
    "fedcad": ("strategy.client.obsolete_factor=0.4", "local.sampler=shuffle"),
    "fedldp": ("strategy.server.clipping=quantile",),
    "adpfl": ("model=mlp",),
    "fedper": ("model=mlp",),
    "ldpfl": (),
    "nbafl": (),
    "dpsgd": ("local.batch_size=6",),
    "dpfl_agn": ("model=mlp", "local.batch_size=6", "strategy.client.local_steps=2"),
}


@pytest.mark.rotates(2)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_alike_with_both_trainers(run: Run, method: str) -> None:
    """Also with planned faults and, for those that keep one, a budget that runs out."""
    faults = "engine.faults=[{round: 2, client: 1, kind: raise}, {round: 2, client: 3, kind: drop}]"
    options = [f"strategy={method}", *PARTIAL, *METHODS[method], faults]
    folders = {kind: run(*options, f"engine.trainer={kind}") for kind in ("sequential", "vectorised")}
    one, other = (load_file(folder / "model.safetensors") for folder in folders.values())
    slow, fast = (torch.cat([part.flatten() for part in model.values()]) for model in (one, other))
    assert float((slow - fast).norm()) <= 1e-5 * float(slow.norm())
    booked = [[(row["round"], row["client"], row["sequence"]) for row in ledger_of(f)] for f in folders.values()]
    assert booked[0] == booked[1]
    for before, after in zip(*(rows_of(folder) for folder in folders.values()), strict=True):
        assert (before["participants"], before["dropped"], before["errors"]) == (
            after["participants"],
            after["dropped"],
            after["errors"],
        )
        assert after["train_loss"] == pytest.approx(before["train_loss"], rel=1e-4)
    assert any(row["dropped"] for row in rows_of(folders["vectorised"]))


def test_ledgers_are_the_same_to_the_byte_and_budgets_stop_the_same_clients(run: Run) -> None:
    """Noise that does not depend on the update: every entry is the same; the budget runs out in the second round."""
    options = ("strategy=fedldp", "privacy.max_epsilon=120", "strategy.client.noise_multiplier=0.2", *PARTIAL)
    folders = [run(*options, f"engine.trainer={kind}") for kind in ("sequential", "vectorised")]
    ledgers = [(folder / "ledger.jsonl").read_bytes() for folder in folders]
    assert ledgers[0] == ledgers[1] and ledgers[0]
    stopped = [json.loads((folder / "summary.json").read_text())["privacy"]["clients_stopped"] for folder in folders]
    assert stopped[0] == stopped[1] > 0


@pytest.mark.parametrize("kind", ["hook", "twice"])
def test_a_chain_that_is_more_than_its_layers_is_not_computed_by_hand(kind: str) -> None:
    layer = nn.Linear(9, 9)
    module = nn.Sequential(OrderedDict(all=nn.Sequential(nn.Flatten(), layer, nn.ReLU(), nn.Linear(9, 9))))
    assert Chain.of(module) is not None
    if kind == "hook":
        layer.register_forward_hook(lambda *args: args[2] * 3)
    else:
        module.all.append(layer)
    assert Chain.of(module) is None


# --- auto ------------------------------------------------------------------------------------------------

TEN = ("num_clients=10", "clients_per_round=10", "num_rounds=2", "engine=inprocess", "checkpoint.every=1")


@pytest.mark.parametrize(
    ("options", "trainer", "words"),
    [
        ((), "vectorised", "small steps"),
        (("model=mlp",), "vectorised", "small steps"),
        (("clients_per_round=7",), "sequential", "fewer than 8 clients"),
        (("local.batch_size=100",), "vectorised", "small steps"),
        (("local.batch_size=101",), "sequential", "batches of more than 100"),
        (("local.batch_size=101", "num_clients=15"), "vectorised", "small steps"),  # none has more than 100 examples
        (("model=custom", "model.path=test_vectorised.tanh_model"), "sequential", "model=custom is no chain"),
        (("engine.precision=bfloat16",), "sequential", "in float32"),
        (("model=mlp", "model.hidden=13000", "local.batch_size=10"), "vectorised", "small steps"),  # 975,010 parameters
        (("model=mlp", "model.hidden=14000", "local.batch_size=10"), "sequential", "more than 10,000,000 parameters"),
        (("engine=flower",), "sequential", "one at a time"),
        (("strategy=dpsgd",), "vectorised", "small steps"),
        (("engine.trainer=sequential",), "sequential", "as asked"),
        (("engine.trainer=vectorised", "local.batch_size=101"), "vectorised", "as asked"),
    ],
)
def test_auto_follows_a_rule(options: tuple[str, ...], trainer: str, words: str) -> None:
    config = compose([*TEN, *options])
    choice = choose_trainer(config, Worker(config))
    assert choice.trainer == trainer and words in choice.reason


def test_every_seed_has_the_same_trainer_and_resumes_and_reruns_keep_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders: list[Path] = []  # every seed divides the pictures otherwise
    uneven = ("partition=dirichlet", "local.batch_size=101", "num_clients=15", "local.sampler=shuffle")
    for seed in (0, 1):
        folders.append(tmp_path / f"seed{seed}")
        start_run(compose([*TEN, *uneven, f"seed={seed}"]), folders[-1])
        assert yaml.safe_load((folders[-1] / "config.yaml").read_text())["engine"]["trainer"] == "vectorised"
    expected = result_of(folders[0])
    monkeypatch.setattr(preparation, "FEWEST_CLIENTS", 11)  # as another version may choose
    (folders[0] / "summary.json").unlink()
    resume_run(folders[0])
    assert result_of(folders[0]) == expected
    start_run(config_for_rerun(folders[0]), tmp_path / "again")
    assert result_of(tmp_path / "again") == expected


# --- Steps that go along something else than the gradient: by hand, and the same by both trainers ------------------


ONE_STEP = LocalConfig(epochs=1, steps=1, batch_size=50, lr=0.1, momentum=0.0, sampler="shuffle")


def slope(model: FlatModel, theta: Tensor, data: LocalData) -> Tensor:
    """The gradient [d] of the mean loss, by autograd through an ordinary call."""
    model.load(theta)
    model.grad.zero_()
    model.module.train()
    model.task.mean_loss(model(data.inputs), data.targets).backward()  # type: ignore[no-untyped-call]
    return model.grad.clone()


def stepped(name: str, rule: StepGradient | None) -> tuple[Tensor, Tensor]:
    """(what one step of size 1 goes along, the gradient where it starts)."""
    model, data = model_of(name), max(data_of(name), key=len)
    theta = model.theta.clone()
    found = SequentialTrainer(model, ONE_STEP).train(Training(theta, data, rng(0), gradient=rule)).update / -0.1
    return found, slope(model, theta, data)


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_sharpness_is_the_gradient_a_radius_up_the_slope(name: str) -> None:
    found, gradient = stepped(name, Sharpness(0.7))
    model, data = model_of(name), max(data_of(name), key=len)
    expected = slope(model, model.theta + 0.7 * gradient / gradient.norm(), data)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    assert float((found - gradient).norm()) > 0.05 * float(gradient.norm())


def test_without_a_slope_nothing_is_added() -> None:
    theta, grad = torch.ones(3), torch.zeros(3)
    Sharpness(0.7).alone(theta, grad, lambda: torch.zeros(()), lambda: torch.zeros(()))
    assert torch.equal(theta, torch.ones(3)) and torch.equal(grad, torch.zeros(3))


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_probes_are_the_gradients_part_along_public_directions(name: str) -> None:
    size = model_of(name).theta.numel()
    probes = probes_of(5, 3, size, 4, 1e-3)
    found, gradient = stepped(name, probes)
    slopes = probes.rows @ gradient  # <g, z_k>
    wanted = slopes @ probes.rows / 4
    assert float((found - wanted).norm()) < 0.05 * float(wanted.norm())  # float32, and ReLU has kinks
    torch.testing.assert_close(probes.coordinates(wanted), slopes)


@pytest.mark.parametrize(("size", "count"), [(1, 1), (40, 1), (40, 40), (650, 16)])
def test_directions_are_public_long_and_at_right_angles(size: int, count: int) -> None:
    probes = probes_of(7, 2, size, count, 0.1)
    np.testing.assert_allclose(probes.rows @ probes.rows.T, size * np.eye(count), atol=1e-4 * size)
    assert torch.equal(probes.rows, probes_of.__wrapped__(7, 2, size, count, 0.1).rows)
    assert not torch.equal(probes.rows.abs(), probes_of(7, 3, size, count, 0.1).rows.abs()) or size == 1
    numbers = torch.randn(count, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(probes.coordinates(probes.vector(numbers)), numbers, rtol=1e-4, atol=1e-5)


def test_directions_are_uniform() -> None:
    """Squares of a direction's parts have mean 1 along every axis: over 3,000 rounds within five standard errors."""
    squares = torch.stack([probes_of(1, number, 6, 2, 0.1).rows[1] ** 2 for number in range(3000)])
    deviation = (squares.var(0) / 3000).sqrt()
    assert bool(((squares.mean(0) - 1).abs() < 5 * deviation).all())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
@pytest.mark.parametrize("rule", ["sharpness", "probes"])
def test_both_trainers_take_the_same_steps(rule: str, name: str, momentum: float) -> None:
    """Unequal clients, one without data; differences of float32 losses are less exact than gradients."""
    model = model_of(name)
    lr = 0.1 if rule == "sharpness" else 1 / model.theta.numel()  # a slope along z_k, of length sqrt(d), grows with d
    config = LocalConfig(epochs=2, batch_size=4, lr=lr, momentum=momentum, sampler="shuffle")
    theta = model.theta.clone()
    own: StepGradient = Sharpness(0.3) if rule == "sharpness" else probes_of(1, 1, theta.numel(), 3, 1e-2)

    def asked() -> list[Training]:
        return [Training(theta, data, rng(k), 0.1, None, own) for k, data in enumerate(data_of(name))]

    alone = SequentialTrainer(model, config).train_all(asked())
    together = VectorisedTrainer(model, config).train_all(asked())
    for one, other, size in zip(alone, together, SIZES, strict=True):
        assert float((one.update - other.update).norm()) <= 2e-3 * float(one.update.norm())
        assert other.loss == pytest.approx(one.loss, rel=1e-4, abs=1e-6)
        assert float(one.update.norm()) > 0 or size == 0


@pytest.mark.parametrize("rule", [Sharpness(0.3), Probes(torch.eye(650)[:2] * 650**0.5, 1e-2)], ids=["sharp", "probes"])
def test_a_clients_bits_do_not_depend_on_who_is_beside_it(rule: StepGradient) -> None:
    model, data = model_of("linear"), [one for one in data_of("linear") if len(one)]
    if isinstance(rule, Probes):
        rule = probes_of(1, 1, model.theta.numel(), 2, 1e-2)
    trainer = VectorisedTrainer(model, LocalConfig(epochs=1, batch_size=4, lr=0.1, momentum=0.0, sampler="shuffle"))

    def updates(some: range) -> list[Tensor]:
        asked = [Training(torch.zeros_like(model.theta), data[k], rng(k), 0.0, None, rule) for k in some]
        return [found.update for found in trainer.train_all(asked)]

    together = updates(range(len(data)))
    assert all(torch.equal(updates(range(k, k + 1))[0], together[k]) for k in range(len(data)))
