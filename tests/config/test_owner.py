"""Whose a run's folder is: what it may name where this user's commands did not write it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedpriv
from fedpriv.__main__ import main
from fedpriv.common import places
from fedpriv.common.errors import CodeRefused, OptionError, RunFolderError
from fedpriv.config import owner
from fedpriv.config.compose import compose, read_config
from fedpriv.config.schema import Config
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.other_options import config_for_rerun
from fedpriv.runs.start import resume_run
from fedpriv.training.trained_model import load_model

CODE = "open(__file__ + '.ran', 'w').close()\ndef net(shape, classes):\n    raise SystemExit\nclass Server: pass\n"


@pytest.fixture(autouse=True)
def _user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(owner, "_trusted", set())
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("mine_here.py").write_text(CODE)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    monkeypatch.delenv(places.VARIABLE, raising=False)
    places.use_own_methods()
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "work"))


def folder(*options: str, own: bool = False) -> Path:
    found = RunFolder(Path("run"))
    found.path.mkdir()
    found.write_config(compose(options))
    if not own:
        (found.path / owner.OWNER).unlink()
    return found.path


def changed(path: Path, option: str, value: Any) -> None:
    raw = yaml.safe_load((path / "config.yaml").read_text())
    *sections, name = option.split(".")
    part = raw
    for section in sections:
        part = part[section]
    part[name] = value
    (path / "config.yaml").write_text(yaml.safe_dump(raw))


READERS: list[Callable[[Path], object]] = [load_model, config_for_rerun, resume_run, read_config]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("option", "value"),
    [("model.path", "mine_here.net"), ("strategy.server._target_", "mine_here.Server"), ("model.path", "os.system")],
)
def test_code_that_a_folder_of_others_names_is_not_imported(
    reader: Callable[[Path], object], option: str, value: str
) -> None:
    path = folder("model=custom", "model.path=mine_here.net")
    changed(path, option, value)
    with pytest.raises(CodeRefused, match=r"no code that it names is imported \(.*trust_code="):
        reader(path)
    assert not Path("mine_here.py.ran").exists()


def test_the_tag_is_of_the_very_bytes_and_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder("model=custom", "model.path=mine_here.net", own=True)
    assert read_config(path).model.path == "mine_here.net"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another"))
    with pytest.raises(CodeRefused):
        read_config(path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    changed(path, "seed", 1)
    with pytest.raises(CodeRefused):
        read_config(path)


def test_a_tag_of_one_kind_of_file_is_none_of_another() -> None:
    path = folder(own=True)
    (path / "sweep.json").write_bytes((path / "config.yaml").read_bytes())
    assert owner.is_own(path, "config.yaml") and not owner.is_own(path, "sweep.json")


def test_code_is_imported_where_the_user_says_its_digest() -> None:
    path = folder("model=custom", "model.path=mine_here.net")
    digest = hashlib.sha256(Path("mine_here.py").read_bytes()).hexdigest()
    owner.trust(f"mine_here.net@{digest}")
    assert read_config(path).model.path == "mine_here.net"
    Path("mine_here.py").write_text(CODE + "# another line\n")
    with pytest.raises(CodeRefused):
        read_config(path)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("mine_here.net", "must be the dotted path"),
        ("mine_here.net@" + "0" * 64, "that file has the SHA-256"),
        ("nowhere.net@" + "0" * 64, "there is no such file here"),
        ("", "must be the dotted path"),
    ],
)
def test_a_wrong_consent_says_what_is_wrong(said: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match=words):
        owner.trust(said)
    assert main(["report", "nowhere", f"trust_code={said}"]) == 2
    assert "trust_code" in capsys.readouterr().err


def test_a_method_that_lies_beside_the_folder_is_not_the_projects() -> None:
    path = folder("strategy=fedldp")
    assert read_config(path).strategy.name == "fedldp"
    Path("clients").mkdir()
    Path("clients/fedldp.py").write_text(CODE)
    with pytest.raises(CodeRefused):
        read_config(path)
    assert not Path("clients/fedldp.py.ran").exists()


def test_a_runs_folder_is_no_place_of_own_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "theirs"
    inside.mkdir()
    (inside / "summary.json").write_text("{}")
    monkeypatch.delenv(places.VARIABLE)
    places.use_own_methods(inside)
    assert places.own_methods() is None


PLACES = {
    "dataset.root": "elsewhere",
    "dataset.cache": "elsewhere",
    "model.weights": "w.safetensors",
    "engine.address": "ray://127.0.0.1:1",
    "operations.log_file": "log",
    "operations.metrics_port": 0,
    "operations.metrics_address": "0.0.0.0",
    "tracking.kinds": ["mlflow"],
    "tracking.folder": "tracks",
    "tracking.mlflow_address": "http://127.0.0.1:1",
    "tracking.wandb_mode": "online",
}


@pytest.mark.parametrize("option", PLACES)
def test_places_that_a_folder_of_others_names_are_said_again(option: str) -> None:
    path, value = folder("model=linear", *["engine=ray"] * (option == "engine.address")), PLACES[option]
    changed(path, option, value)
    with pytest.raises(RunFolderError, match=rf"{option}=.*say each of these again"):
        config_for_rerun(path)
    shown = json.dumps(value)
    assert config_for_rerun(path, [f"{option}={shown}"]).to_dict()["seed"] == 0
    owner.mark_own(path, "config.yaml")
    assert config_for_rerun(path)


@pytest.mark.parametrize(
    ("call", "least"), [(fedpriv.audit_run, {"trials": 1000}), (fedpriv.attack_run, {})], ids=["audit", "attack"]
)
def test_python_says_places_again_too(call: Callable[..., object], least: dict[str, int]) -> None:
    path = folder("model=linear")
    (path / "summary.json").write_text("{}")
    changed(path, "dataset.root", "elsewhere")
    with pytest.raises(RunFolderError, match=r"dataset\.root=elsewhere.*say each of these again"):
        call(path)
    with pytest.raises(fedpriv.FedprivError) as refused:  # a summary without content, which is read later
        call(path, places=["dataset.root=here"], **least)
    assert "say each of these again" not in str(refused.value)


def test_every_option_that_names_a_place_is_known() -> None:
    """A new option of these kinds is thought over: `PLACES`, or here with the reason."""
    harmless = {
        "model.path",  # code
        "dataset.path",
        "dataset.hub_name",  # public data, read as data
        "run_dir",  # of another machine: never used, see below
        "tracking.run_name",  # a name without slashes, of a file in a place that the user said
    }
    words = ("root", "cache", "file", "folder", "address", "port", "weights", "dir", "path", "split", "name")
    for section, field in Config.model_fields.items():
        kind: Any = field.annotation
        names = getattr(kind, "model_fields", None)
        for name in [section] if names is None else [f"{section}.{name}" for name in names]:
            last = name.rpartition(".")[2]
            if any(last == word or last.endswith(f"_{word}") for word in words) and last != "name":
                known = name in owner.PLACES or name in harmless
                assert known or last in ("train_split", "test_split"), f"{name}: does it name a place?"


def test_the_place_of_a_run_of_others_is_not_used() -> None:
    path = folder()
    changed(path, "run_dir", "elsewhere")
    assert read_config(path).run_dir is None and read_config(path, ()).run_dir is None


def test_what_is_only_looked_at_writes_into_the_users_own_cache() -> None:
    path = folder("dataset.cache=elsewhere")
    assert read_config(path).dataset.cache is None
    owner.mark_own(path, "config.yaml")
    assert read_config(path).dataset.cache == "elsewhere"


def test_a_sweep_of_others_does_not_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    Path("sweep").mkdir()
    options = ["num_rounds=1", "hydra.launcher._target_=os.system"]
    Path("sweep/sweep.json").write_text(json.dumps({"jobs": 1, "options": options}))
    assert main(["resume=sweep"]) == 2
    assert "did not begin this sweep" in capsys.readouterr().err


def test_two_first_commands_at_once_have_one_key() -> None:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(owner._key())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found[0]) == 32 and len(found) == 8


def test_without_a_place_for_the_key_a_run_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    path = RunFolder(Path("run"))
    path.path.mkdir()
    path.write_config(compose([]))
    assert not owner.is_own(path.path, "config.yaml") and read_config(path.path)
