"""Using a finished model: `python -m fedpriv.predict` and `fedpriv.load`."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SMALL, Run
from PIL import Image
from torch import nn

import fedpriv
from fedpriv.commands.predict import main
from fedpriv.common.errors import DataError, OptionError, RunFolderError
from fedpriv.config.compose import compose
from fedpriv.data.load import load_dataset
from fedpriv.runs.start import start_run
from fedpriv.training.trained_model import load_model


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    start_run(compose([*SMALL, "num_rounds=12", "model=mlp"]), folder)
    return folder


@pytest.fixture
def digit(tmp_path: Path) -> tuple[Path, int]:
    """A test picture in a file, four times its size and in colour, and its label."""
    test = load_dataset(compose([]).dataset, 0).test
    file = tmp_path / "digit.png"
    Image.fromarray(test.inputs[0, 0]).resize((32, 32), Image.Resampling.NEAREST).convert("RGB").save(file)
    return file, int(test.targets[0])


def test_a_loaded_model_scores_what_the_summary_says(finished: Path):
    import json

    model, test = fedpriv.load(finished).model, load_dataset(compose([]).dataset, 0).test
    probabilities = model.probabilities(np.asarray(test.inputs))
    assert probabilities.shape == (360, 10) and torch.allclose(probabilities.sum(1), torch.ones(360))
    accuracy = float((probabilities.argmax(1).numpy() == test.targets).mean())
    assert accuracy == json.loads((finished / "summary.json").read_text())["accuracy"]["final"] > 0.8


def test_the_command_prints_a_line_per_picture_and_goes_on_past_files_that_are_none(
    finished: Path, digit: tuple[Path, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (file, label), text = digit, tmp_path / "notes.txt"
    text.write_text("no picture")
    assert main([f"run={finished}", str(text), str(file), "nowhere.png", str(file)]) == 2
    outcome = capsys.readouterr()
    first, second = outcome.out.splitlines()
    name, found, probability = first.split("\t")
    assert first == second and (name, found) == (str(file), str(label)) and 0.3 < float(probability) <= 1
    assert "2 of 4 files: " in outcome.err and "notes.txt: not a picture" in outcome.err
    assert "nowhere.png: No such file" in outcome.err and outcome.err.count("\n") == 1
    assert main([f"run={finished}", str(file)]) == 0 and capsys.readouterr().out == f"{first}\n"
    for folder, words in (("nowhere", "no such run folder"), (".", "no config.yaml")):
        assert main([f"run={tmp_path}/{folder}", str(file)]) == 2 and words in capsys.readouterr().err


def test_pictures_of_another_size_are_refused(finished: Path):
    with pytest.raises(DataError, match=r"uint8 \[n, 1, 8, 8\], got uint8 \[2, 1, 28, 28\]"):
        fedpriv.load(finished).model.probabilities(np.zeros((2, 1, 28, 28), np.uint8))


def test_an_unfinished_or_damaged_run_has_no_model(run: Run):
    folder = run("num_rounds=1")
    good = (folder / "model.safetensors").read_bytes()
    for content, words in ((good[:100], "cannot be read"), (b"", "cannot be read")):
        (folder / "model.safetensors").write_bytes(content)
        with pytest.raises(RunFolderError, match=words):
            load_model(folder)
    other = run("num_rounds=1", "model=mlp")
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(RunFolderError, match=r"not of the model that config.yaml names"):
        load_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(RunFolderError, match="has not finished"):
        load_model(folder)


@pytest.mark.parametrize(("name", "old", "new"), [("model.safetensors", None, None), ("classes.json", b'"7"', b'"1"')])
def test_a_changed_byte_is_no_model(name: str, old: bytes | None, new: bytes | None, run: Run):
    """Both would be read: a parameter has another sign, or a 7 is called a 1."""
    folder = run("num_rounds=1")
    good = (folder / name).read_bytes()
    changed = good.replace(old, new or b"") if old else good[:-1] + bytes([good[-1] ^ 0x80])
    (folder / name).write_bytes(changed)
    with pytest.raises(RunFolderError, match=rf"the model is damaged \({name}: not the bytes"):
        load_model(folder)
    (folder / name).write_bytes(good)
    load_model(folder)


# --- the user's own model --------------------------------------------------------------------------------


def network(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))


def with_batch_norm(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))


def wrong_output(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


def raises(shape: tuple[int, int, int], classes: int) -> nn.Module:
    raise ValueError("not today")


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> str:
    module = types.ModuleType("users_own_models")
    for function in (network, with_batch_norm, wrong_output, raises):
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def test_a_model_of_the_users_own_trains_and_loads(run: Run, own_module: str):
    folder = run("model=custom", f"model.path={own_module}.network", "num_rounds=1")
    assert fedpriv.load(folder).model.probabilities(np.zeros((1, 1, 8, 8), np.uint8)).shape == (1, 10)


@pytest.mark.parametrize(
    ("strategy", "path", "words"),
    [
        ("fedcad", "with_batch_norm", "BatchNorm1d"),
        ("fedldp", "with_batch_norm", "BatchNorm1d"),
        ("fedavg", "wrong_output", r"logits \[n, 10\]"),
        ("fedavg", "raises", "raised ValueError: not today"),
        ("fedavg", "nothing", "has no attribute .nothing."),
    ],
)
def test_what_a_model_of_the_users_own_must_not_be(strategy: str, path: str, words: str, run: Run, own_module: str):
    with pytest.raises(OptionError, match=words) as caught:
        run(f"strategy={strategy}", "model=custom", f"model.path={own_module}.{path}")
    assert "\n" not in str(caught.value)
