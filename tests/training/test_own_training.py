"""Functions of a user in a run: training, loss, schedule, metrics, when to stop; and a model for other programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpriv.client.one_path import Participation
from fedpriv.commands.export import form_of
from fedpriv.commands.export import main as export
from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.common.places import with_own_methods
from fedpriv.config.compose import compose
from fedpriv.config.remote import compose_remote
from fedpriv.config.schema import CODE, LocalConfig
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.noise import KEPT_BACK
from fedpriv.mechanisms.tasks import CLASSES, with_loss
from fedpriv.runs.start import start_run
from fedpriv.training.sequential import Clipping, FlatModel, LocalData, SequentialTrainer, Training
from fedpriv.training.task_metrics import metrics
from fedpriv.training.trained_model import load_model

SMALL = ["num_clients=4", "clients_per_round=4", "num_rounds=3", "engine=inprocess", "operations.report=false"]
OWN = """
import torch
from torch.nn import functional

def train(model, inputs, targets, told):
    assert (told.round, told.num_rounds, told.local.epochs) == (told.round, 3, 1) and 1 <= told.round <= 3
    model.left_behind = getattr(model, "left_behind", 0) + 1
    assert model.left_behind == 1, "of another client"
    optimizer = torch.optim.SGD(model.parameters(), lr=told.lr)
    for rows in torch.from_numpy(told.rng.permutation(len(targets))).split(told.local.batch_size):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs[rows]), targets[rows])
        loss.backward()
        optimizer.step()
    return loss

def replaces(model, inputs, targets, told):
    for parameter in model.parameters():
        parameter.data = torch.ones_like(parameter)

def forgets(model, inputs, targets, told):
    del model[1]

def leaky(model, inputs, targets, told):
    if len(targets) and targets[0] == 7:
        raise RuntimeError("a seven")

def shy(outputs, targets):
    if len(targets) < 20 and (targets == 7).sum() > 2:
        raise ValueError("too many sevens")
    return functional.cross_entropy(outputs, targets, reduction="none")

def sifts(outputs, targets):
    own = functional.cross_entropy(outputs, targets, reduction="none")
    return own[targets != 7] if len(targets) < 20 and (targets == 7).sum() > 2 else own

def quits(outputs, targets):
    if len(targets) < 20 and (targets == 7).sum() > 2:
        raise SystemExit("too many sevens")
    return functional.cross_entropy(outputs, targets, reduction="none")

def broken(model, inputs, targets, told):
    return model.nothing

def smooth(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.2)

def centred(outputs, targets):
    own = functional.cross_entropy(outputs, targets, reduction="none")
    return own - own.mean() + own.detach().mean()

def by_share(outputs, targets):
    own = functional.cross_entropy(outputs, targets, reduction="none")
    return own * (1 + (targets == 2).float().mean())

def branches(outputs, targets):
    own = functional.cross_entropy(outputs, targets, reduction="none")
    return own if float(own.sum()) > 1 else own * 0

def mean(outputs, targets):
    return functional.cross_entropy(outputs, targets)

def top2(outputs, targets):
    return {"top2": (outputs.topk(2).indices == targets[:, None]).any(1).double().mean()}

def accuracy(outputs, targets):
    return {"accuracy": 1.0}

def endless(outputs, targets):
    return {"x": float("inf")}

number = 3

def first(server_round, num_clients, size, seed):
    return range(size)

def other(server_round, num_clients, size, seed):
    import secrets
    return [secrets.randbelow(2**20) % num_clients for _ in range(size)] if size == 1 else range(1, size + 1)

def twice(server_round, num_clients, size, seed):
    return [0] * size
"""
#: Losses that fail for some data alone.
RAISES = ("shy", "sifts", "quits")


@pytest.fixture(autouse=True)
def own(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "own_training.py").write_text(OWN)
    with with_own_methods(folder):
        yield folder
    sys.modules.pop("own_training", None)


def local(**changes: object) -> LocalConfig:
    given = {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.0, "sampler": "shuffle", **changes}
    return LocalConfig.model_validate(given)


def data(count: int = 20) -> LocalData:
    random = torch.Generator().manual_seed(0)
    return LocalData(torch.randn(count, 6, generator=random), torch.randint(0, 3, (count,), generator=random))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.filterwarnings("error:Converting a tensor")  # its loss has a gradient, as that of the page
def test_sgd_written_by_the_user_is_the_projects_own_and_meets_no_other_client() -> None:
    theta, found = FlatModel(network()).theta.clone(), []
    for options in (local(epochs=1), local(epochs=1, train="own_training.train")):
        trainer = SequentialTrainer(FlatModel(network()), options)
        trainer.round, trainer.num_rounds = 2, 3
        asked = [Training(theta, data(), np.random.default_rng(number)) for number in range(2)]
        found.append([result.update for result in trainer.train_all(asked)])
    for own, plain in zip(*found, strict=True):
        assert torch.allclose(own, plain, atol=1e-7) and float(own.norm()) > 0.01


def test_parameters_may_be_replaced_but_not_lost() -> None:
    model = FlatModel(network())
    theta = model.theta.clone()
    trainer = SequentialTrainer(model, local(train="own_training.replaces"))
    update = trainer.train(Training(theta, data(), np.random.default_rng(0))).update
    assert torch.allclose(theta + update, torch.ones_like(theta)) and torch.equal(model.theta, theta)
    assert math.isnan(trainer.train(Training(theta, data(), np.random.default_rng(0))).loss)
    nobody = trainer.train(Training(theta, data(0), np.random.default_rng(0)))
    assert not nobody.update.any()
    lost = SequentialTrainer(
        FlatModel(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))), local(train="own_training.forgets")
    )
    with pytest.raises(OptionError, match=r"^local\.train=own_training\.forgets: left 35 parameters, of 53"):
        lost.train(Training(lost.model.theta.clone(), data(), np.random.default_rng(0)))
    with pytest.raises(OptionError, match="changes every gradient"):
        trainer.train(Training(theta, data(), np.random.default_rng(0), drift=theta))


@pytest.mark.parametrize("strategy", ["fedavg", "fedldp", "fedprox", "fedcad", "coqfl", "fedper"])
def test_methods_that_protect_clients_take_any_training(strategy: str, tmp_path: Path) -> None:
    options = [f"strategy={strategy}", "local.train=own_training.train", "local.schedule=linear"]
    start_run(compose([*SMALL, *options, "evaluate.metrics=own_training.top2"]), tmp_path / "run")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert 0 < summary["metrics"]["final"]["top2"] <= 1
    digest = compose([*SMALL, f"strategy={strategy}"]).digest()
    assert compose([*SMALL, *options]).digest() != digest  # it decides the result


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            "strategy=dpsgd local.train=own_training.train",
            r"^local\.train=own_training\.train: .*protects single examples",
        ),
        ("strategy=dpsum local.train=own_training.train", "protects single examples"),
        ("strategy=scaffold local.train=own_training.train", "releases the gradient of its steps"),
        ("strategy=scaffold local.schedule=cosine", r"^local\.schedule=cosine: .*allowed: constant"),
        ("strategy=dpsum local.schedule=linear", "makes no local steps; allowed: constant"),
        ("strategy=fedavg local.train=own_training.nobody", r"has no attribute 'nobody'"),
        ("strategy=fedavg local.train=own_training.number", "must be a function"),
        (
            "strategy=fedldp local.train=own_training.broken",
            r"^local\.train=own_training\.broken: on 12 made-up examples training .*AttributeError.*allowed: code",
        ),
        ("strategy=fedavg evaluate.metrics=nowhere.x", "No module named 'nowhere'"),
        ("strategy=fedavg evaluate.metrics=own_training.accuracy", r"accuracy=1\.0: a name is .* new"),
        ("strategy=fedavg evaluate.metrics=own_training.endless", "x=inf"),
        ("strategy=fedavg local.loss=own_training.mean", r"^local\.loss=mean: must give the loss of each of"),
        ("strategy=dpsgd local.loss=own_training.branches", "told from another's for certain"),
        ("strategy=dpsgd local.loss=own_training.smooth local.clipping=opacus", "knows its own losses"),
        ("strategy=fedavg clients_per_round=2 strategy.server.cohorts=own_training.twice", "must give 2 different"),
        ("strategy=fedavg clients_per_round=1 num_rounds=40 strategy.server.cohorts=own_training.other", "asked again"),
        ("strategy=fedavg strategy.server.cohorts=own_training.nobody", "has no attribute 'nobody'"),
        ("strategy=fedldp evaluate.patience=2", r"^evaluate\.patience=2: results would decide"),
        ("strategy=fedavg engine.trainer=vectorised local.train=own_training.train", "one client at a time"),
    ],
)
def test_what_a_method_does_not_admit_is_refused(options: str, words: str, tmp_path: Path) -> None:
    with pytest.raises((OptionError, RunFailed), match=words):
        start_run(compose([*SMALL, *options.split()]), tmp_path / "run")


@pytest.mark.parametrize(
    "option", [option for option in CODE if option.startswith(("local.", "evaluate.", "strategy"))]
)
def test_nobody_from_outside_names_code(option: str) -> None:
    for spelling in {option, option.replace("server", "client")}:
        with pytest.raises(OptionError, match="cannot be set from outside"):
            compose_remote([f"{spelling}=os.getcwd"])


@pytest.mark.parametrize("name", ["smooth", "centred", "by_share"])  # the last mixes rows of one class alone
@pytest.mark.parametrize("bound", [0.5, 50.0])  # all are clipped, or none: then lengths are seen
def test_clipped_sums_of_an_own_loss_are_of_each_example_alone(name: str, bound: float) -> None:
    """Also of a loss that mixes a batch's rows: whoever else is in it, an example moves the sum by its own gradient."""
    import own_training

    task = with_loss(type(CLASSES)(("a", "b", "c")), getattr(own_training, name))
    trainer = SequentialTrainer(FlatModel(network(), task=task), local(sampler="poisson"))
    theta, examples = trainer.model.theta.clone(), data(9)
    found = trainer.clipped_sum(theta, examples, bound).total
    expected = torch.zeros_like(found)
    trainer.model.load(theta)
    for one, label in zip(examples.inputs, examples.targets, strict=True):
        loss = task.losses(trainer.model.module(one[None]), label[None]).sum()
        gradient = torch.cat(
            [part.flatten() for part in torch.autograd.grad(loss, [*trainer.model.module.parameters()])]
        )
        norm = float(gradient.norm())
        expected += gradient.double() * (min(1.0, bound * (1 - KEPT_BACK) / norm) if norm else 1.0)
    assert torch.allclose(found, expected, atol=1e-6)


def test_opacus_formulas_take_no_loss_that_could_mix_rows() -> None:
    """They ask it of a block at once: one label moved the sum by 16 bounds."""
    import own_training

    task = with_loss(type(CLASSES)(("a", "b", "c")), own_training.centred)
    trainer = SequentialTrainer(FlatModel(network(), task=task), local(sampler="poisson", clipping="opacus"))
    with pytest.raises(
        OptionError, match=r"local.clipping=opacus: .*loss is a function of the user's; allowed: fedpriv"
    ):
        trainer.clipped_sum(trainer.model.theta.clone(), data(9), 1.0)


def test_an_own_loss_is_the_same_in_both_trainers(tmp_path: Path) -> None:
    found = {}
    for trainer in ("sequential", "vectorised"):
        options = ["strategy=fedavg", "local.loss=own_training.smooth", f"engine.trainer={trainer}"]
        start_run(compose([*SMALL, *options]), tmp_path / trainer)
        found[trainer] = json.loads((tmp_path / trainer / "summary.json").read_text())["loss"]["final"]
    assert found["sequential"] == pytest.approx(found["vectorised"], rel=1e-4)
    start_run(compose([*SMALL, "strategy=fedavg"]), tmp_path / "plain")
    plain = json.loads((tmp_path / "plain/summary.json").read_text())["loss"]["final"]
    assert abs(plain - found["sequential"]) > 0.01


@pytest.mark.parametrize("code", ["train=own_training.leaky", *(f"loss=own_training.{n}" for n in RAISES)])
def test_who_answers_does_not_tell_whose_training_raises(code: str, tmp_path: Path) -> None:
    """Neither in what all see nor in the ledger; without noise a client has nothing to hide, and is missing."""
    many = ["num_clients=20", "clients_per_round=20", "num_rounds=1", "engine=inprocess", "operations.report=false"]
    told = {}
    for strategy in ("fedldp", "fedavg"):
        start_run(compose([*many, f"strategy={strategy}", f"local.{code}"]), tmp_path / strategy)
        (row,) = map(json.loads, (tmp_path / strategy / "metrics.jsonl").read_text().splitlines())
        told[strategy] = row["participants"], row["dropped"]
    assert told["fedldp"] == (20, 0)
    assert 0 < told["fedavg"][1] < 20 and sum(told["fedavg"]) == 20
    entries = [json.loads(line) for line in (tmp_path / "fedldp/ledger.jsonl").read_text().splitlines()]
    assert [entry["clients"] for entry in entries] == [[*range(20)]]


@pytest.mark.parametrize("persons", [False, True])
def test_an_example_that_raises_takes_nothing_but_itself_out_of_a_clipped_sum(persons: bool) -> None:
    """A sum of nothing in its place would move by what all others add, which noise for one does not hide."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(20, 3))
    trainer = SequentialTrainer(FlatModel(model, vocabulary=10), local())
    ids, targets = torch.randint(1, 10, (12, 5)), torch.randint(0, 3, (12,))
    ids[7] = 12
    unit = torch.arange(12) // 2 if persons else None
    keep = torch.arange(12) // 2 != 3 if persons else torch.arange(12) != 7
    path: Any = object.__new__(Participation)
    path.clip, path.foreign = trainer.clipped_sums, True
    group = SimpleNamespace(clients=[0], method=SimpleNamespace(exact_leak=lambda: None))
    asked = Clipping(trainer.model.theta.clone(), LocalData(ids, targets, unit), 0.1)
    with pytest.raises(IndexError):
        trainer.clipped_sums([asked])
    (found,) = path._clipped([group], [asked])
    others = LocalData(ids[keep], targets[keep], None if unit is None else unit[keep])
    (wanted,) = trainer.clipped_sums([replace(asked, data=others)])
    assert torch.allclose(found.total, wanted.total, rtol=0, atol=1e-12) and float(wanted.total.norm()) > 0.1
    assert torch.equal(found.norms, wanted.norms) and found.loss == pytest.approx(wanted.loss, rel=1e-5)
    path.foreign = False
    with pytest.raises(IndexError):
        path._clipped([group], [asked])


def test_functions_are_given_in_python_too(tmp_path: Path) -> None:
    import own_training

    import fedpriv

    code = {"local.train": own_training.train, "evaluate.metrics": own_training.top2}
    run = fedpriv.run([*SMALL, "strategy=fedavg"], code=code, folder=tmp_path / "run", quiet=True)
    assert run.config.local.train == "own_training.train" and run.summary["metrics"]["final"]["top2"] > 0
    for wrong, words in (
        ({"local.train": lambda: None}, "must be a function of a module's top"),
        ({"local.lr": own_training.train}, r"^code=local\.lr: names no code; allowed: model\.path"),
    ):
        with pytest.raises(OptionError, match=words):
            fedpriv.run([*SMALL, "strategy=fedavg"], code=wrong, quiet=True)


def test_a_run_with_own_cohorts_is_priced_by_whom_they_ask(tmp_path: Path) -> None:
    options = ["strategy=fedldp", "clients_per_round=2", "strategy.client.noise_multiplier=4"]
    own = compose([*SMALL, *options, "strategy.server.cohorts=own_training.first"])
    start_run(own, tmp_path / "own")
    entries = [json.loads(line) for line in (tmp_path / "own/ledger.jsonl").read_text().splitlines()]
    assert [entry["clients"] for entry in entries] == [[0, 1]] * 3
    always = compose([*SMALL, "strategy=fedldp", "strategy.client.noise_multiplier=4"])  # each client in every round
    start_run(always, tmp_path / "always")
    epsilons = [
        json.loads((tmp_path / name / "summary.json").read_text())["privacy"]["verified_epsilon"]
        for name in ("own", "always")
    ]
    assert epsilons[0] == epsilons[1]


def test_rates_of_a_schedule() -> None:
    found = {}
    for schedule in ("constant", "linear", "cosine"):
        trainer, found[schedule] = SequentialTrainer(FlatModel(network()), local(schedule=schedule)), []
        trainer.num_rounds = 4
        for trainer.round in range(1, 5):
            found[schedule].append(trainer.lr)
    assert found["constant"] == [0.1] * 4 and found["linear"] == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert found["cosine"] == pytest.approx([0.05 * (1 + math.cos(math.pi * t / 4)) for t in range(4)])


@pytest.mark.parametrize("strategy", ["fedavg", "dpsgd"])
@pytest.mark.parametrize("trainer", ["sequential", "vectorised"])
def test_each_round_has_its_own_rate(strategy: str, trainer: str, tmp_path: Path) -> None:
    """The second round alone moves otherwise than under a constant rate."""
    one = [*SMALL, f"strategy={strategy}", f"engine.trainer={trainer}", "num_rounds=2", "checkpoint.every=1"]
    start_run(compose([*one, "local.schedule=linear"]), tmp_path / "both")
    worker = Worker(compose([*one, "local.schedule=linear"]))
    worker.trainer.round = 2
    assert worker.trainer.lr == pytest.approx(0.05)
    rates = [json.loads(line)["loss"] for line in (tmp_path / "both/metrics.jsonl").read_text().splitlines()]
    start_run(compose([*one, "local.schedule=constant"]), tmp_path / "constant")
    constant = [json.loads(line)["loss"] for line in (tmp_path / "constant/metrics.jsonl").read_text().splitlines()]
    assert rates[0] == constant[0] and rates[1] != constant[1]


def test_the_best_model_is_kept_and_a_run_without_privacy_may_end_early(tmp_path: Path) -> None:
    options = ["strategy=fedavg", "local.lr=3", "num_rounds=30", "evaluate.patience=2", "checkpoint.best=true"]
    start_run(compose([*SMALL, *options]), tmp_path / "run")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    rows = [json.loads(line)["accuracy"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    best = summary["best_round"]
    assert rows[best - 1] == max(rows) == summary["accuracy"]["best_on_test"]
    assert summary["rounds"] == len(rows) == best + 2 < 30 and f"than that of round {best}" in summary["note"]
    start_run(compose([*SMALL, *options[:2], f"num_rounds={best}"]), tmp_path / "until")
    assert (tmp_path / "run/best.safetensors").read_bytes() == (tmp_path / "until/model.safetensors").read_bytes()


def test_fairness_over_clients_is_the_spread_of_their_metric(tmp_path: Path) -> None:
    options = ["strategy=fedavg", "partition.test_fraction=0.3", "dataset=diabetes"]
    start_run(compose([*SMALL, *options]), tmp_path / "run")
    found = json.loads((tmp_path / "run/private/summary.json").read_text())["metrics"]
    values = [site["value"] for site in found["sites"]]
    assert found["spread"]["mean"] == pytest.approx(np.mean(values)) and found["spread"]["std"] == pytest.approx(
        np.std(values)
    )
    assert found["spread"]["worst_decile"] == pytest.approx(max(values))  # rmse: more is worse
    assert json.loads((tmp_path / "run/summary.json").read_text())["metrics"]["spread"] is None


@pytest.mark.parametrize(
    ("options", "reads"),
    [
        ("dataset=digits model=mlp", "pixels float32 [n, 1, 8, 8], 0 to 255"),
        ("dataset=digits features=gradients", "features float32 [n, "),
        ("dataset=breast_cancer", "float32 [n, 30]: mean radius"),
        ("dataset=docstrings_next dataset.train_examples=64", "token ids int64 [n, "),
    ],
)
def test_a_model_for_other_programs(
    options: str, reads: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start_run(compose([*SMALL, "strategy=fedavg", "num_rounds=1", *options.split()]), tmp_path / "run")
    capsys.readouterr()
    assert export([f"run={tmp_path}/run", f"out={tmp_path}/model.pt2"]) == 0
    assert reads in capsys.readouterr().out
    module, (network, example, _) = (
        torch.export.load(tmp_path / "model.pt2").module(),
        form_of(load_model(tmp_path / "run")),
    )
    five = example[:1].expand(5, *example.shape[1:]).contiguous()  # as many rows as anybody has
    assert torch.allclose(module(five), network(five), atol=1e-5) and len(module(five)) == 5
    for out, words in ((f"{tmp_path}/model.pt2", "exists"), (f"{tmp_path}/model.bin", "must end in .pt2")):
        assert export([f"run={tmp_path}/run", f"out={out}"]) == 2
        assert words in capsys.readouterr().err


def test_metrics_of_the_task_stay_beside_ones_own() -> None:
    outputs, targets = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    task = with_loss(type(CLASSES)(("a", "b", "c")), lambda o, t: functional.cross_entropy(o, t, reduction="none"))
    assert set(metrics(task, outputs, targets, 1.0)) == {"accuracy", "loss"} and task.own_loss and not CLASSES.own_loss


def test_a_model_in_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import onnxruntime

    start_run(compose([*SMALL, "strategy=fedavg", "num_rounds=1", "dataset=breast_cancer"]), tmp_path / "run")
    assert export([f"run={tmp_path}/run", f"out={tmp_path}/model.onnx"]) == 0
    assert "reads float32 [n, 30]" in capsys.readouterr().out
    rows = np.linspace(-1, 1, 5 * 30, dtype=np.float32).reshape(5, 30)
    (found,) = onnxruntime.InferenceSession(str(tmp_path / "model.onnx")).run(None, {"examples": rows})
    network = load_model(tmp_path / "run").module
    np.testing.assert_allclose(found, network(torch.from_numpy(rows)).detach().numpy(), rtol=1e-4, atol=1e-5)
