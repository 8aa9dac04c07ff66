"""LEAF's four sets, in files of their own form: each becomes a set whose users are clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Outcome
from PIL import Image

from fedpriv.commands.leaf import CHARACTERS, main
from fedpriv.config.compose import compose
from fedpriv.data.load import load_federated
from fedpriv.data.types import FederatedData

RNG = np.random.default_rng(0)
TWEET = ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", "anna", "my knee hurts again", "training"]

#: Of each set: one x by its number, the y's.
ROWS: dict[str, tuple[Callable[[int], Any], list[Any]]] = {
    "femnist": (lambda k: [float(v) for v in np.arange(784) % (k + 2) / (k + 2)], [0, 10, 61, 36]),
    "celeba": (lambda k: f"{k:06d}.jpg", [0, 1, 1, 0]),
    "shakespeare": (lambda k: f"{'to be or not to be ' * 5:.79}{k}", ["a", "b", "c", " "]),
    "sent140": (lambda k: [*TWEET[:4], f"{TWEET[4]} {k}", TWEET[5]], [0, 1, "1", 0]),
}


def leaf(folder: Path, name: str, change: Callable[[dict[str, Any]], Any] = lambda content: content) -> Path:
    """Six users of four to nine training rows and two test rows each."""
    x, ys = ROWS[name]
    for split in ("train", "test"):
        data, number = {}, 0
        for user in range(6):
            rows = range(number, number := number + (user + 4 if split == "train" else 2))
            data[f"user {user}"] = {"x": [x(k) for k in rows], "y": [ys[k % 4] for k in rows]}
        content = {"users": list(data), "num_samples": [len(one["y"]) for one in data.values()], "user_data": data}
        (folder / split).mkdir(parents=True)
        text = json.dumps(change(content))
        (folder / split / f"all_data_niid_0_keep_0_{split}_9.json").write_text(text, encoding="utf-8")
    images = folder / "raw/img_align_celeba"
    images.mkdir(parents=True)
    for k in range(60):
        Image.fromarray(RNG.integers(0, 255, (21, 17, 3), np.uint8)).save(images / f"{k:06d}.jpg")
    return folder


def converted(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> FederatedData:
    """By the command that is printed, in another folder than the project's."""
    monkeypatch.chdir(folder)
    source = leaf(folder / name, name)
    more = [f"images={source / 'raw/img_align_celeba'}"] if name == "celeba" else []
    assert main([str(source), f"out={folder / 'set'}", *more]) == 0
    words = capsys.readouterr().out.splitlines()[-1].removeprefix("python -m fedpriv ").split()
    own = ["dataset.auxiliary=0", "strategy=fedavg", f"dataset.cache={folder / 'cache'}"]
    return load_federated(compose([*words, *own]))


@pytest.mark.parametrize("name", ROWS)
def test_every_user_is_a_client_with_its_own_rows(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = converted(tmp_path, name, capsys, monkeypatch)
    assert data.dataset.sites == tuple(f"user {user}" for user in range(6))
    assert [data.num_examples(client) for client in range(6)] == list(range(4, 10))
    assert len(data.dataset.test) == 12
    if name == "femnist":
        assert data.dataset.classes == CHARACTERS and data.dataset.shape == (1, 28, 28)
        seen = np.asarray(data.dataset.train.inputs[5]).reshape(-1)
        assert seen.tolist() == np.rint(255 * (np.arange(784) % 7 / 7)).tolist()
        assert [CHARACTERS[label] for label in data.dataset.train.targets[:4]] == ["0", "A", "z", "a"]
    if name == "celeba":
        assert data.dataset.classes == ("no smile", "smile") and data.dataset.shape == (3, 84, 84)
    if name == "sent140":
        assert data.dataset.classes == ("negative", "positive")
        assert data.dataset.train.targets[:4].tolist() == [0, 1, 1, 0]


def test_rows_that_preprocessing_did_not_divide_are_divided_by_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], cli: Callable[..., Outcome]
) -> None:
    source = leaf(tmp_path / "leaf", "femnist")
    (source / "train").rename(source / "all_data")
    assert main(["leaf", "out=set"]) == 0
    words = capfd.readouterr().out.splitlines()[-1].removeprefix("python -m fedpriv ").split()
    small = ["model=linear", "num_rounds=1", "dataset.cache=cache", "dataset.auxiliary=0", "engine=inprocess"]
    outcome = cli(*words, *small)
    assert outcome.code == 0, outcome.err


def named(what: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    """Changes one part of a user's rows."""

    def change(content: dict[str, Any]) -> dict[str, Any]:
        content["user_data"]["user 3"][what][-1] = value
        return content

    return change


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("femnist", named("x", [0.5] * 783), "user 3, row 6: a picture must be 784 numbers from 0 to 1"),
        ("femnist", named("x", [255.0] * 784), "user 3, row 6: a picture must be 784 numbers from 0 to 1"),
        ("femnist", named("y", 62), "user 3, row 6: y=62 is no class; allowed: 0 to 61"),
        ("femnist", named("y", None), "user 3, row 6: int() argument must be"),
        ("celeba", named("x", "000999.jpg"), "user 3, row 6: there is no picture 000999.jpg in"),
        ("celeba", named("x", "../000001.jpg"), "user 3, row 6: there is no picture ../000001.jpg in"),
        ("shakespeare", named("x", 3), "user 3, row 6: 3 is no text"),
        ("sent140", named("x", ["short"]), "user 3, row 6: list index out of range"),
        ("sent140", lambda c: {**c, "users": [*c["users"], "lost"]}, "there are no rows of user lost"),
        ("sent140", lambda c: c["users"], "is no file of LEAF"),
        (
            "sent140",
            lambda c: {**c, "users": ["a"], "user_data": {"a": {"x": [1], "y": []}}},
            "x and y are not lists of one length",
        ),
        ("sent140", lambda c: {**c, "users": [], "user_data": {}}, "no user has a row"),
        ("sent140", named("x", None), "user 3, row 6"),
    ],
)
def test_what_leaf_does_not_write_is_told_and_leaves_nothing(
    name: str, change: Callable[[dict[str, Any]], Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = leaf(tmp_path / "leaf", name, change)
    images = [f"images={source / 'raw/img_align_celeba'}"] if name == "celeba" else []
    assert main([str(source), f"out={tmp_path / 'set'}", *images]) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "set").exists()


def test_a_folder_without_rows_and_a_set_that_exists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = leaf(tmp_path / "leaf", "celeba")
    for arguments, words in (
        ([str(tmp_path), f"out={tmp_path / 'set'}"], "allowed: a data folder of LEAF after preprocess.sh"),
        ([str(source), f"out={tmp_path}"], "exists; allowed: a folder that does not"),
        ([str(source), f"out={tmp_path / 'set'}"], "images=null: the rows name pictures"),
    ):
        assert main(arguments) == 2 and words in capsys.readouterr().err
