"""`flwr run .`: the bundle builds from a fresh clone, holds what the app needs, and composes its own configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from fedpriv.app import _config_of
from fedpriv.common.errors import OptionError

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("fedpriv", "strategies", "clients", "conf", "tests", "benchmarks")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names in the bundle that Flower's own command builds from the tracked files alone."""
    home = tmp_path_factory.mktemp("bundle")
    app = home / "fedpriv"
    app.mkdir()
    for part in PARTS:
        shutil.copytree(ROOT / part, app / part, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for file in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / file, app / file)
    (app / "outputs").mkdir()
    (app / "outputs" / "summary.json").write_text("{}")  # a run folder must stay at home
    command = [str(Path(sys.executable).parent / "flwr"), "build", "--app", str(app)]
    environment = os.environ | {"FLWR_HOME": str(home / "flwr"), "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = [*home.glob("*.fab"), *app.glob("*.fab")]
    return zipfile.ZipFile(file).namelist()


def test_bundle_holds_the_whole_app(bundle: list[str]) -> None:
    wanted = [path for part in ("fedpriv", "strategies", "clients") for path in (ROOT / part).rglob("*.py")]
    wanted += (ROOT / "conf").rglob("*.yaml")
    assert {path.relative_to(ROOT).as_posix() for path in wanted} - set(bundle) == set()


def test_bundle_leaves_run_folders_tests_and_benchmarks_at_home(bundle: list[str]) -> None:
    assert [name for name in bundle if name.split("/")[0] in ("outputs", "tests", "benchmarks")] == []


def context(overrides: str) -> Context:
    return Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={"overrides": overrides})


def test_app_composes_from_the_runs_own_options() -> None:
    config = _config_of(context("strategy=fedldp num_clients=6 clients_per_round=3 run_dir=/somewhere"))
    assert (config.strategy.name, config.num_clients, config.engine.name) == ("fedldp", 6, "flower")
    assert config.run_dir == "/somewhere"


@pytest.mark.parametrize(
    "overrides", ["strategy.client._target_=os.mkdir", "dataset.root=/etc", "privacy.rng=secure", "+x=1"]
)
def test_app_refuses_what_a_server_must_not_set(overrides: str) -> None:
    with pytest.raises(OptionError, match="outside the app"):
        _config_of(context(overrides))
