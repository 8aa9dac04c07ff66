"""Which files a run depends on: the project's that it may use, the user's that it names, and no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import SMALL

from fedpriv.common.errors import RunFolderError
from fedpriv.common.places import HOME, PACKAGE, with_own_methods
from fedpriv.config import source_files as module
from fedpriv.config.compose import compose
from fedpriv.config.source_files import APART, difference, source_files
from fedpriv.runs.start import resume_run, start_run
from tools.floors import imported

#: Of the user's: a method whose base lies beside it, and a helper that is imported later.
OWN = {
    "own/__init__.py": "",
    "own/server.py": "from strategies.fedavg import FedAvg\n\nclass Mine(FedAvg):\n    pass\n",
    "own/client.py": "from .base import Base\n\nclass MyClient(Base):\n    def later(self):\n        import helper\n",
    "own/base.py": "from clients.fedavg import FedAvgClient\nimport numpy\n\nclass Base(FedAvgClient): pass\n",
    "own/data/sets.py": "",  # a folder without __init__.py
    "helper.py": "from further import help\n",
    "further/part.py": "help = 1\n",
    "never.py": "",
}
NAMES = "strategy.server._target_=own.server.Mine", "strategy.client._target_=own.client.MyClient"


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_digests", module._digests.__wrapped__)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def users(*overrides: str) -> set[str]:
    files = source_files(compose(overrides))
    return {name for name in files if not (PACKAGE.parent / name).is_file() and not (HOME / name).is_file()}


def test_the_projects_files_are_there_but_for_rooms_apart() -> None:
    found = source_files(compose(["strategy=coqfl"]))
    assert {"fedpriv/client/base.py", "fedpriv/app.py", "clients/coqfl.py", "strategies/__init__.py"} <= found.keys()
    assert {room.name for room in PACKAGE.iterdir() if room.is_dir() and any(room.glob("*.py"))} - set(APART) == {
        name.split("/")[1] for name in found if name.startswith("fedpriv/") and name.count("/") > 1
    }
    assert list(found) == sorted(found) and all((HOME / name).is_file() for name in found)
    assert not users("strategy=fedcad")


def test_no_file_that_a_run_may_use_imports_a_room_apart() -> None:
    """Were a base or an engine left out, a resumed run would give other updates under the same noise keys. What the
    reports import follows a run and decides nothing.
    """
    doors = {f"fedpriv/{door}.py" for door in ("__init__", "__main__", "flower")}
    names = source_files(compose([])).keys() - doors
    files = [(HOME / name, name.removesuffix(".py").replace("/", ".")) for name in names]
    found = {one for file, module in files for one in imported(file.read_text(), module) if one.startswith("fedpriv.")}
    rooms = {name.split(".")[1] for name in found}
    assert {"client", "engines", "runs"} < rooms and rooms & set(APART) == {"report"}


def test_a_method_of_the_users_brings_what_it_imports(tmp_path: Path) -> None:
    write(tmp_path, OWN)
    with with_own_methods(tmp_path):
        assert users("strategy=fedavg", *NAMES) == set(OWN) - {"never.py"}
        first = source_files(compose(["strategy=fedavg", *NAMES]))
        write(tmp_path, {"further/part.py": "help = 2\n", "never.py": "changed = True\n"})
        assert difference(first, source_files(compose(["strategy=fedavg", *NAMES]))) == "further/part.py has changed"
        write(tmp_path, {"clients/mine.py": "import never\n"})  # a folder of methods counts as a whole
        assert users("strategy=fedavg") == {"clients/mine.py", "never.py"}


def test_the_users_pictures_model_and_network_are_among_them(tmp_path: Path) -> None:
    write(tmp_path, {"mine.py": "import other\n", "other.py": "", "net.py": "", "deep/net.py": ""})
    options = ["dataset=custom", "dataset.path=mine.load", "model=custom", "model.path=net.build", "strategy=fedavg"]
    network = ["features=backbone", "features.architecture=deep.net.Net", "features.trained_on=x"]
    division = ["partition=partitioner", "partition.partitioner=cut.halves"]
    write(tmp_path, {"cut.py": ""})
    with with_own_methods(tmp_path):
        assert users(*options, *network, *division) == {"mine.py", "other.py", "net.py", "deep/net.py", "cut.py"}


THEN = {f"{letter}.py": "1" for letter in "abcdefgh"}


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (THEN, ""),
        ({name: digest for name, digest in THEN.items() if name != "b.py"}, "b.py is gone"),
        (THEN | {"b.py": "3", "new.py": "4"}, "b.py has changed"),  # which is the one that may use the new one
        (
            dict.fromkeys(THEN, "9"),
            "a.py has changed, b.py has changed, c.py has changed, d.py has changed, e.py has changed, and 3 more",
        ),
    ],
)
def test_the_files_that_differ_are_named(now: dict[str, str], words: str) -> None:
    assert difference(THEN, now) == words


def test_a_run_is_not_resumed_by_other_code(tmp_path: Path) -> None:
    layers = "nn.Sequential(nn.Flatten(), nn.Linear(64, classes))"
    write(tmp_path, {"net.py": f"from torch import nn\n\ndef build(shape, classes): return {layers}\n"})
    with with_own_methods(tmp_path):
        options = (*SMALL, "strategy=fedavg", "checkpoint.every=1", "model=custom", "model.path=net.build")
        start_run(compose([*options, "operations.report=false"]), tmp_path / "run")
        os.unlink(tmp_path / "run" / "summary.json")
        text = (tmp_path / "net.py").read_text()
        (tmp_path / "net.py").write_text(text + "\n")
        with pytest.raises(RunFolderError, match=r"\(net\.py has changed\): put that back, or rerun"):
            resume_run(tmp_path / "run")
        (tmp_path / "net.py").write_text(text)
        resume_run(tmp_path / "run")
