"""Where methods are found: the user's folder first in a simulation, the project's alone in a deployment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedpriv.commands.table import flags_and_overrides, with_config_dir
from fedpriv.common.errors import OptionError
from fedpriv.common.places import (
    CONFIG_DIR,
    HOME,
    METHOD_PACKAGES,
    ROOT,
    VARIABLE,
    import_path,
    installed_code_only,
    load_module,
    own_methods,
    use_own_methods,
    with_own_methods,
)
from fedpriv.config.compose import compose
from fedpriv.config.halves import locate
from fedpriv.config.own_options import choices
from fedpriv.config.remote import compose_remote
from fedpriv.config.source_files import source_files
from fedpriv.report.reading import SWEEP_FILE, flags_of_sweep, options_of_sweep

TARGET = "clients.{}.Own"


def folder_with(tmp_path: Path, name: str, number: int) -> Path:
    """A user's folder with a method ``name`` whose class says which folder it is."""
    for part in (*METHOD_PACKAGES, "conf/strategy", "conf/model"):
        (tmp_path / part).mkdir(parents=True)
    for part in METHOD_PACKAGES:
        (tmp_path / part / f"{name}.py").write_text(f"class Own:\n    number = {number}\n")
    fedldp = (HOME / "conf/strategy/fedldp.yaml").read_text()
    halves = fedldp.replace("strategies.fedldp.FedLDP", f"strategies.{name}.Own")
    halves = halves.replace("clients.fedldp.FedLDPClient", f"clients.{name}.Own")
    halves = halves.replace("name: fedldp", f"name: {name}").replace("clip_norm: 1.0", f"clip_norm: {number}.0")
    (tmp_path / f"conf/strategy/{name}.yaml").write_text(halves)
    # Of another program: nothing of it may count.
    (tmp_path / "conf/config.yaml").write_text("defaults: [nowhere]\n")
    (tmp_path / "conf/model/linear.yaml").write_text("name: another\n")
    return tmp_path


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv(VARIABLE, raising=False)


def test_a_users_method_is_found_before_the_projects_and_only_when_asked(tmp_path: Path) -> None:
    own, shadow = folder_with(tmp_path / "a", "mine", 1), folder_with(tmp_path / "b", "fedldp", 2)
    with pytest.raises(OptionError, match="strategy=mine: allowed: "):
        compose(["strategy=mine"])
    with with_own_methods(own):
        config = compose(["strategy=mine", "model=linear"])
        assert (config.strategy.name, config.model.name, config.strategy.options.clip_norm) == (
            "mine",
            "linear",
            1,
        )
        assert locate(TARGET.format("mine"), "x").number == 1
        assert locate("clients.fedcad.FedCADClient", "x").__name__ == "FedCADClient"
        assert {"clients/mine.py", "strategies/mine.py"} <= source_files(config).keys()
        assert {"mine", "fedcad"} <= set(choices("strategy"))
    with with_own_methods(shadow):
        assert compose(["strategy=fedldp"]).strategy.client == "clients.fedldp.Own"
        assert locate(TARGET.format("fedldp"), "x").number == 2
    assert own_methods() is None
    assert compose(["strategy=fedldp"]).strategy.client == "clients.fedldp.FedLDPClient"
    assert locate("clients.fedldp.FedLDPClient", "x").__name__ == "FedLDPClient"
    with pytest.raises(OptionError, match="cannot be imported"):
        locate(TARGET.format("nowhere"), "x")


EXPERIMENT = "# @package _global_\ndefaults: [_self_, override /strategy: fedldp]\nnum_rounds: {}\n"


def test_a_users_experiment_is_found_in_the_working_directory_or_in_the_folder_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, rounds in (("here/conf", 3), ("there", 4)):
        (tmp_path / folder / "experiment").mkdir(parents=True)
        (tmp_path / folder / "experiment/mine.yaml").write_text(EXPERIMENT.format(rounds))
    (tmp_path / "here/conf/experiment/hospitals.yaml").write_text(EXPERIMENT.format(5))  # before the project's
    with pytest.raises(OptionError, match="experiment=mine: allowed: "):
        compose(["experiment=mine"])
    monkeypatch.setenv(CONFIG_DIR, "")  # put back afterwards
    with with_own_methods(tmp_path / "here"):
        found = [compose([f"experiment={name}"]) for name in ("mine", "hospitals")]
        assert [(one.strategy.name, one.num_rounds) for one in found] == [("fedldp", 3), ("fedldp", 5)]
        assert with_config_dir(None, ["-m", "seed=1"]) == ["-m", "seed=1"] and not os.environ[CONFIG_DIR]
        for said in (["--config-dir", str(tmp_path / "there")], [f"--config-dir={tmp_path / 'there'}"]):
            folder = flags_and_overrides([*said, "experiment=mine"])[0].config_dir
            assert with_config_dir(folder, [*said, "experiment=mine"]) == ["experiment=mine"]
        assert compose(["experiment=mine"]).num_rounds == 4
        assert compose(["experiment=hospitals"]).num_clients == 5 and "mine" in choices("experiment")
        with pytest.raises(OptionError, match=r"--config-dir=.*nowhere: allowed: a folder that holds strategy/NAME"):
            with_config_dir(str(tmp_path / "nowhere"), [])
        with pytest.raises(OptionError, match="cannot be set from outside"):
            compose_remote(["experiment=mine"])
        options = {"jobs": 1, "options": ["experiment=mine"]}
        for said in (options, {**options, "config_dir": os.environ[CONFIG_DIR]}):
            (tmp_path / SWEEP_FILE).write_text(json.dumps(said))
            assert options_of_sweep(tmp_path) == ["experiment=mine"]
            assert flags_of_sweep(tmp_path) == [f"--config-dir={tmp_path / 'there'}"] * ("config_dir" in said)
    monkeypatch.chdir(tmp_path)
    installed_code_only()
    with pytest.raises(OptionError, match="experiment=mine: allowed: "):
        compose(["experiment=mine"])


def test_another_folder_with_the_same_name_is_another_method(tmp_path: Path) -> None:
    first, second = folder_with(tmp_path / "a", "mine", 1), folder_with(tmp_path / "b", "mine", 2)
    found = []
    for folder in (first, second, first):
        with with_own_methods(folder):
            config = compose(["strategy=mine"])
            digest = source_files(config)["clients/mine.py"]
            found.append((locate(TARGET.format("mine"), "x").number, config.strategy.options.clip_norm, digest))
    assert [number for number, _, _ in found] == [n for _, n, _ in found] == [1, 2, 1]
    assert found[0] == found[2] != found[1]


def test_a_deployment_sees_neither_the_users_folder_nor_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = folder_with(tmp_path, "mine", 1)
    (own / "my_model.py").write_text("x = 1\n")
    monkeypatch.chdir(own)
    use_own_methods()
    assert compose(["strategy=mine"]).strategy.name == "mine" and load_module("my_model").x == 1
    sys.modules.pop("my_model")
    with pytest.raises(OptionError, match="cannot be set from outside"):
        compose_remote(["strategy=mine"])  # not even where somebody has asked for the folder
    sys.path[:0] = ["", ".", str(own)]
    installed_code_only()
    assert VARIABLE not in os.environ and own_methods() is None
    assert not {"", ".", str(own)} & set(sys.path) and str(HOME) in sys.path
    for name in ("my_model", "clients.mine", "strategies.mine"):
        sys.modules.pop(name, None)
        with pytest.raises(ImportError):
            load_module(name)
    with pytest.raises(OptionError, match="strategy=mine: allowed: "):
        compose(["strategy=mine"])


def test_a_module_in_the_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "clients", sys.modules["json.decoder"])
    with pytest.raises(OptionError, match=r"the module clients of .*decoder\.py stands in the way"):
        locate("clients.fedcad.FedCADClient", "x")


def test_another_package_of_this_name_keeps_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients/__init__.py").write_text("theirs = True\n")
    (tmp_path / "clients/later.py").write_text("x = 3\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "clients"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    import clients

    assert clients.theirs  # type: ignore[attr-defined]
    assert locate("clients.fedcad.FedCADClient", "x").__name__ == "FedCADClient"
    assert load_module("clients.later").x == 3
    for name in [name for name in sys.modules if name.partition(".")[0] == "clients"]:
        monkeypatch.delitem(sys.modules, name)


#: Modules of a user's that are called as a library's, or as one of Python's own.
CLASHES = ("datasets", "random", "ray", "torch", "numpy", "flwr", "hydra", "yaml", "queue")


COMMANDS = {"console": ("fedpriv",), "-m": ("-m", "fedpriv"), "-m a command": ("-m", "fedpriv.predict")}


@pytest.mark.parametrize("called", COMMANDS)
def test_a_users_datasets_py_stops_no_command(called: str, tmp_path: Path) -> None:
    for name in CLASHES:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the user file {name} was imported')\n")
    python = Path(sys.executable)
    program = (str(python.parent / "fedpriv"),) if called == "console" else (str(python), *COMMANDS[called])
    options = ["num_rounds=1", "num_clients=4", "clients_per_round=4", "operations.report=false", "engine=inprocess"]
    words = ["run=nowhere", "x.png"] if called == "-m a command" else options
    environment = os.environ | {"FEDPRIV_CACHE": str(tmp_path / "cache"), "PYTHONPATH": ""}
    ran = subprocess.run([*program, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "was imported" not in ran.stdout + ran.stderr
    assert ran.returncode == (2 if words != options else 0), ran.stderr


def test_the_users_folder_comes_last_and_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(ROOT)])  # no other test's entries
    before = list(sys.path)
    with with_own_methods():
        assert sys.path == [*(entry for entry in before if entry not in ("", str(tmp_path))), str(tmp_path)]
        sys.path.append("added meanwhile")
        assert import_path() == sys.path
    assert sys.path == [*before, "added meanwhile"]


def test_a_checkout_stays_on_the_path_behind_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", ["", "elsewhere", str(ROOT), "installed"])
    monkeypatch.setenv(VARIABLE, "")
    use_own_methods()
    assert sys.path == ["elsewhere", "installed", str(ROOT)]


def test_a_module_that_a_library_hides_is_named(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("def load(split): ...\n")
    (tmp_path / "queued.py").write_text("def load(split): ...\n")
    with with_own_methods(tmp_path):
        assert load_module("queued").load is not None
        with pytest.raises(ImportError, match=r"queue\.py is called as the installed module queue: rename it"):
            load_module("queue")
    sys.modules.pop("queued")


def test_further_processes_find_this_copy_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "fedpriv").mkdir()
    (tmp_path / "fedpriv/__init__.py").touch()
    sys.path.insert(0, str(tmp_path))
    assert import_path() == [str(ROOT), *sys.path]
    sys.path[:2] = ["", str(HOME)]
    assert import_path() == [entry for entry in sys.path if entry]


@pytest.mark.ray
def test_ray_puts_no_folder_before_the_path_of_its_workers() -> None:
    from fedpriv.engines.ray_pool import job_config

    places = job_config()._py_driver_sys_path
    places.extend([str(Path.cwd())])
    assert not places
