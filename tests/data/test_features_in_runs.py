"""Public features in whole runs: both trainers, a deployment, a finished model, and what is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SMALL, Outcome, Run, page_of
from deployed import POLICY, Machines, codes
from PIL import Image
from safetensors.torch import load_file

import fedpriv
from fedpriv.commands.predict import main
from fedpriv.config.compose import compose
from fedpriv.config.remote import compose_remote
from fedpriv.data.features import Features
from fedpriv.data.load import load_dataset
from fedpriv.deployment.gate import Node, model_size
from fedpriv.engines.worker import Worker
from fedpriv.training.evaluation import Evaluator
from fedpriv.training.resident import Resident, fits
from fedpriv.training.sequential import inputs_of, normalise

STROKES = ("features=gradients", "features.map=strokes", "features.dims=60", "model=softmax", "local.lr=5")
RUN = (*STROKES, "num_clients=5", "clients_per_round=4")


@pytest.mark.parametrize("features", [("features=gradients",), STROKES[:3]], ids=" ".join)
def test_a_round_is_one_step_of_softmax_regression_on_the_features(features: tuple[str, ...], run: Run, tmp_path: Path):
    """W = -lr gradient at 0 = lr mean((y - 1/10) x^T), over the pictures of all clients in one batch each. What the
    features of a picture are, `test_features` says; that other engines do the same, `test_engines`.
    """
    options = (*features, "model=softmax", "strategy=fedavg", "local.lr=5", "local.batch_size=1000", "num_rounds=1")
    found = load_file(run(*options, "num_clients=2", "clients_per_round=2") / "model.safetensors")
    config = compose([*SMALL, *options])
    train = load_dataset(config.dataset, 0).train  # pictures alone
    images = np.asarray(train.inputs)
    x = Features(config.features, images.shape[1:], tmp_path)(images).astype(np.float64)  # a stroke map of its own
    expected = 5 * (np.eye(10)[np.asarray(train.targets)] - 0.1).T @ x / len(x)
    (weight,) = found.values()
    np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-4, atol=1e-6)
    assert np.abs(expected).max() > 0.01


@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_clients_side_by_side_learn_what_one_after_the_other_does(model: str, run: Run, tmp_path: Path):
    models = []
    for trainer in ("sequential", "vectorised"):
        more = ("features=gradients", f"model={model}", "strategy=fedavg", "num_rounds=2", "local.lr=2")
        folder = run(*more, f"engine.trainer={trainer}", "operations.report=false", folder=tmp_path / trainer)
        models.append(load_file(folder / "model.safetensors"))
    assert models[0].keys() == models[1].keys()
    for key, value in models[0].items():
        torch.testing.assert_close(models[1][key], value, atol=1e-5, rtol=1e-4)
        assert value.abs().max() > 0.01


def test_per_example_gradients_of_features(run: Run):
    folder = run(*STROKES, "strategy=dpsgd", "strategy.client.noise_multiplier=0.5", "num_rounds=4")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["num_parameters"] == 600 and summary["privacy"]["verified_epsilon"] > 0


def test_a_finished_model_reads_pictures(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    whole = run(*RUN, "strategy=fedavg", "num_rounds=12")
    summary, model = json.loads((whole / "summary.json").read_text()), fedpriv.load(whole).model
    test = load_dataset(compose([]).dataset, 0).test
    found = model.probabilities(np.asarray(test.inputs))
    accuracy = float((found.argmax(1).numpy() == test.targets).mean())
    assert accuracy == summary["accuracy"]["final"] > 0.6
    alone = model.probabilities(np.asarray(test.inputs[4:5]))
    torch.testing.assert_close(alone[0], found[4])
    file = tmp_path / "digit.png"
    Image.fromarray(test.inputs[4, 0]).save(file)
    capsys.readouterr()
    assert main([f"run={whole}", str(file)]) == 0
    assert capsys.readouterr().out.split("\t")[1] == str(int(found[4].argmax()))


def test_plan_summary_and_report_say_what_was_known(run: Run, cli: Any):
    whole = run(*RUN, "strategy=dpfedavg", "num_rounds=1")
    known = "oriented gradients; a stroke map: knows that digits are strokes"
    assert json.loads((whole / "summary.json").read_text())["public_knowledge"] == known
    assert known in page_of(whole)
    planned: Outcome = cli(*SMALL, *RUN, "plan=true")
    assert planned.code == 0 and known in planned.out and "600" in planned.out.split("parameters")[1].split()[0]
    plain = run("num_rounds=1")
    assert json.loads((plain / "summary.json").read_text())["public_knowledge"] == "none"
    assert "public knowledge" not in page_of(plain)
    assert "public knowledge" not in cli(*SMALL, "plan=true").out


def test_test_pictures_and_clients_get_the_same_features():
    worker = Worker(compose([*SMALL, *RUN]))
    dataset = worker.data.dataset
    rows = worker.data.train_indices(2)
    read = worker.local_data(2).inputs
    assert read.shape == (len(rows), 60, 1, 1) and read.dtype == torch.float32
    assert torch.equal(read, inputs_of(dataset, dataset.train, rows))
    assert torch.equal(Evaluator(worker).inputs, inputs_of(dataset, dataset.test, np.sort(worker.data.test)))
    resident = Resident(dataset.train, dataset.mean, dataset.std, torch.device("cpu"))
    assert torch.equal(resident.chosen(rows).inputs, read) and not fits(dataset.train, torch.device("cpu"))


def test_without_features_a_model_reads_what_it_read():
    dataset, rows = load_dataset(compose(["features=none"]).dataset, 0), np.array([3, 5])
    read = inputs_of(dataset, dataset.train, rows)
    assert torch.equal(read, normalise(dataset.train.inputs[rows], dataset.mean, dataset.std))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_folder_of_own_pictures(channels: int, tmp_path: Path, run: Run):
    random = np.random.default_rng(0)
    for label in range(2):
        (tmp_path / "own" / str(label)).mkdir(parents=True)
        for number in range(20):
            stripes = np.where(np.arange(40) // 4 % 2, 200, 50) + random.integers(0, 40, (30, 40))
            picture = Image.fromarray((stripes if label else stripes.T).astype(np.uint8)).convert("RGB")
            picture.save(tmp_path / "own" / str(label) / f"{number}.png")
    own = ("dataset=image_folder", f"dataset.root={tmp_path / 'own'}", "dataset.size=20", "dataset.auxiliary=0")
    folder = run(*own, f"dataset.channels={channels}", "features=gradients", "model=linear", "strategy=fedavg")
    assert json.loads((folder / "summary.json").read_text())["accuracy"]["final"] == 1.0


def test_nodes_compute_the_features_of_their_own_pictures(tmp_path: Path):
    network = Machines(tmp_path, 2, POLICY, side=8)
    grid = network.serve(network.overrides("features=gradients", "features.map=strokes", "features.dims=40"))
    assert codes(grid) == ["sent"] * 4
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["num_parameters"] == 3 * 41
    assert summary["public_knowledge"].endswith("knows that digits are strokes")
    for number in range(2):
        (kept,) = network.data(number).glob(".*/cache/features/*/features.npy")  # beside its pictures
        assert np.load(kept).shape == (12, 40)


def test_a_nodes_policy_counts_the_parameters_on_features(tmp_path: Path):
    network = Machines(tmp_path, 1, POLICY, side=8)
    config = compose_remote(network.overrides("features=gradients").split())
    node = Node(0, network.policy(0), network.data(0))
    with network.ledger(0).seen() as ledger:
        assert model_size(node.effective(config, ledger.declared())) == 3 * 193


@pytest.mark.parametrize("override", ["features=gradients", "features.map=strokes", "features.dims=7"])
def test_features_may_be_chosen_from_outside(override: str):
    assert compose_remote(["features=gradients", override]).features.name == "gradients"
