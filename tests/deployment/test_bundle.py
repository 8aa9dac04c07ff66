"""`flwr run .`: the bundle builds from a fresh clone, holds what the app needs, and composes its own configuration."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_disk

from fedpriv.app import _config_of
from fedpriv.commands.node import main
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
    wanted += [*(ROOT / "conf").rglob("*.yaml"), *(ROOT / "fedpriv/report/pages").iterdir()]
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


# --- what `fedpriv deploy node bundle` takes a digest of ---------------------------------------------------

PROJECT = """\
[project]
name = "app"
version = "1"
[tool.flwr.app]
publisher = "me"
[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "app.py").write_text("x = 1\n")
    for name in ("README.md", "LICENSE"):
        (folder / name).write_text("x\n")
    return folder


def test_a_folder_and_its_fab_file_have_one_digest(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = app.parent / "app.fab"
    file.write_bytes(build_fab_from_disk(app))
    assert main(["bundle", str(app)]) == main(["bundle", str(file)]) == 0
    assert capsys.readouterr().out == f"{hashlib.sha256(file.read_bytes()).hexdigest()}\n" * 2


def _zip(*files: tuple[str, str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files:
            archive.writestr(name, text)
    return content.getvalue()


def _with(whole: bytes, name: str, content: bytes) -> bytes:
    """The bundle with another file of this name, and its list of digests as before."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        return _zip(
            *((one, content.decode() if one == name else archive.read(one).decode()) for one in archive.namelist())
        )


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda whole: b"no bundle\n", "File is not a zip file"),
        (lambda whole: b"", "File is not a zip file"),
        (lambda whole: whole[:-30], "File is not a zip file"),
        (lambda whole: _with(whole, "app.py", b"x = 2"), "app.py is not the file that was bundled"),
        (lambda whole: whole.replace(b".info/CONTENT", b".info/content"), ".info/CONTENT"),
        (lambda whole: _zip(("a.txt", "a")), "pyproject.toml"),
        (lambda whole: _zip(("pyproject.toml", "[project")), "Invalid TOML"),
        (lambda whole: _zip(("pyproject.toml", "project = 3")), "where a table belongs"),
        (lambda whole: _zip(("pyproject.toml", PROJECT)), ".info/CONTENT"),
    ],
)
def test_a_file_that_is_no_bundle_gets_no_digest(
    damage: Callable[[bytes], bytes], words: str, app: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be copied into a policy, and the run then be refused by every node."""
    file = app.parent / "app.fab"
    file.write_bytes(damage(build_fab_from_disk(app)))
    assert main(["bundle", str(file)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"fedpriv: app={file}: ") and said.err.count("\n") == 1
    assert words in said.err and "allowed: " in said.err


def _deep(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "x.py").write_text("")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda app: (app / "pyproject.toml").unlink(), "pyproject.toml not found"),
        (lambda app: (app / "pyproject.toml").write_text("[project"), "at the end of a table declaration"),
        (lambda app: (app / "pyproject.toml").write_bytes(b"\xff"), "utf-8"),
        (lambda app: (app / "pyproject.toml").write_text("project = 3\n"), "[project]"),
        (
            lambda app: (app / "pyproject.toml").write_text("tool = 3\n" + PROJECT.split("[tool")[0]),
            "where a table belongs",
        ),
        (lambda app: (app / "pyproject.toml").write_text(PROJECT.replace("publisher", "x")), "publisher"),
        (lambda app: (app / ".gitignore").write_text("pyproject.toml\n"), ".gitignore"),
        (lambda app: _deep(app / "/".join("abcdefghijklmnop")), "maximum directory depth"),
    ],
)
def test_a_folder_that_is_no_app_is_answered_in_one_line(
    change: Callable[[Path], object], words: str, app: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(app)
    assert main(["bundle", str(app)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"fedpriv: app={app}: ") and said.err.count("\n") == 1
    assert words in said.err and "allowed: " in said.err
