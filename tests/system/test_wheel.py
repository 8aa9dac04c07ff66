"""The wheel, installed outside the checkout: what a user has who has never seen this repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from rotation import together

from tools.check_wheel import lay_out

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("num_clients=4", "clients_per_round=4", "num_rounds=2", "engine=inprocess")
QUICK = (*SMALL, "operations.report=false")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.rotates(5, together(2))]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By way of the source distribution, as `uv build` does it."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "uv", "build", "--quiet", "--no-build-isolation", "--offline", "-o", str(out)]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=120)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; its libraries are those of this environment, without this project."""
    place = tmp_path_factory.mktemp("fresh")
    uv = [sys.executable, "-m", "uv", "--quiet", "--offline"]
    subprocess.run([*uv, "venv", "-p", sys.executable, str(place / "venv")], check=True, timeout=120)
    python = place / "venv" / "bin" / "python"
    subprocess.run([*uv, "pip", "install", "--no-deps", "-p", str(python), str(wheel)], check=True, timeout=120)
    (found,) = (place / "venv" / "lib").glob("python*/site-packages")
    folders = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (found / "libraries.pth").write_text("\n".join(folders) + "\n")  # whose own .pth files Python does not read
    return python


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the user works: empty at first, with a space and an umlaut in its name."""
    place = tmp_path_factory.mktemp("user") / "meine Läufe"
    place.mkdir()
    return place


def said(program: Path, folder: Path, *arguments: str, code: int = 0) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FEDPRIV_CACHE")}
    environment |= {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(program), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_one_package_holds_everything(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entries,) = [archive.read(name).decode() for name in names if name.endswith("entry_points.txt")]
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"fedpriv"}
    sources = [*(ROOT / "strategies").glob("*.py"), *(ROOT / "clients").glob("*.py"), *(ROOT / "conf").rglob("*.yaml")]
    assert {f"fedpriv/{path.relative_to(ROOT).as_posix()}" for path in sources} <= set(names)
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "fedpriv/report/pages").iterdir()} <= set(names)
    assert "fedpriv-node = fedpriv.commands.node:console" in entries


def test_a_run_its_audit_and_its_report(python: Path, folder: Path) -> None:
    printed = said(python, folder, "-c", "import fedpriv, sys; print(fedpriv.__file__, *sys.path, sep='\\n')")
    assert str(ROOT) not in printed.splitlines() and str(python.parents[1]) in printed.splitlines()[0]
    said(python, folder, "-m", "fedpriv", *QUICK, "hydra.run.dir=first")
    assert "report.html" in said(python, folder, "-m", "fedpriv.report", "first")
    assert "audited >=" in said(python, folder, "-m", "fedpriv.audit", "run=first", "trials=1000")
    assert (folder / "first/report.html").stat().st_size > 10_000
    summary = json.loads((folder / "first/summary.json").read_text())
    assert summary["commit"].startswith("version ") and summary["privacy"]["audited_epsilon"] is not None
    start = json.loads((folder / "first/.start.json").read_text())
    assert {"clients/fedcad.py", "strategies/fedcad.py", "fedpriv/client/base.py"} <= start["files"].keys()
    assert "strategy=nowhere: allowed: adpfl" in said(python, folder, "-m", "fedpriv", "strategy=nowhere", code=2)


def test_a_method_of_ones_own_in_an_empty_folder(python: Path, folder: Path) -> None:
    fedpriv = python.parent / "fedpriv"  # as it is installed: the working directory is not on its path
    said(fedpriv, folder, "new", "mine")
    assert "1 passed" in said(python, folder, "-m", "pytest", "-q", "-k", "closed_form", "tests/test_mine.py")
    sweep = ("-m", "strategy=mine,fedldp", "hydra/launcher=joblib", "hydra.sweep.dir=sweep")  # in other processes
    printed = said(fedpriv, folder, *sweep, *QUICK)
    assert "0 failed" in printed and "mine on digits" in printed
    start = json.loads((folder / "sweep/0-mine-digits/.start.json").read_text())
    assert {"clients/mine.py", "strategies/mine.py"} <= start["files"].keys()


def test_a_node_does_not_look_into_its_working_directory(python: Path, folder: Path) -> None:
    """Also where somebody has left a method, or a module of a library's name, in it."""
    (folder / "strategies").mkdir(exist_ok=True)
    for name in ("strategies/sneaked.py", "clients/sneaked.py", "left_behind.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("raise SystemExit('this must not run')\n")
    code = (
        "import sys; sys.path.insert(0, ''); from fedpriv.commands.node import main; main(['policy'])\n"
        "from fedpriv.common.places import load_module\n"
        "for name in ('strategies.sneaked', 'clients.sneaked', 'left_behind'):\n"
        "    try: load_module(name)\n"
        "    except ImportError: print('nothing there')\n"
        "print(load_module('clients.fedcad').__file__)\n"
    )
    printed = said(python, folder, "-c", code)
    assert printed.count("nothing there") == 3 and "site-packages/fedpriv/clients/fedcad.py" in printed


THEIR_CODE = """
def release(update, rng):
    return {"u": 0 * update + rng.normal(0, 1, update.shape), "loss": float(update.sum())}
"""
ALONE = """
import sys

class Few:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "flwr", "opacus", "ray", "hydra", "omegaconf", "sklearn", "pandas", "dp_accounting"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Few())
sys.path[:0] = ["alone", "."]
import fedpriv.commands.check, their_code
from fedpriv.checking.checks import check_object
from fedpriv.checking.subject import Question
print(check_object(their_code.release, Question(dims=(4,), trials=400), seconds=5))
print(fedpriv.__file__)
"""


def test_the_check_alone_needs_few_packages(tmp_path: Path) -> None:
    """The files of the wheel fedpriv-check, where torch, Flower and Opacus cannot be imported."""
    names = lay_out(tmp_path / "alone")
    assert "fedpriv/checking/player.py" in names
    assert not any(name.startswith(("fedpriv/runs", "fedpriv/api")) for name in names)
    (tmp_path / "their_code.py").write_text(THEIR_CODE)
    done = subprocess.run(
        [sys.executable, "-P", "-c", ALONE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "faults found: number-without-noise" in done.stdout, done.stderr
    assert "alone/fedpriv/__init__.py" in done.stdout
