"""Which files a run depends on: those that it uses, and no others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import SMALL, Run, result_of
from forked import Forks, forks
from project_copy import ROOT, copied

from fedpriv.config.compose import compose
from fedpriv.config.methods import METHODS
from fedpriv.config.source_files import PROJECT, READERS, difference, source_files

#: A method of the user's, in files of the user's: a base beside the client, and a helper that is imported later.
OWN_SERVER = "from strategies.fedavg import FedAvg\n\nclass Mine(FedAvg):\n    pass\n"
OWN_CLIENT = """from typing import TYPE_CHECKING
from .base import Base
if TYPE_CHECKING:
    from own import never
class MyClient(Base):
    def later(self):
        from own.helper import help
"""
OWN_BASE = (
    "from clients.fedavg import FedAvgClient\nimport numpy, own.data.sets as sets\n\nclass Base(FedAvgClient): pass\n"
)
OWN = {
    "own/__init__.py": "",
    "own/server.py": OWN_SERVER,
    "own/client.py": OWN_CLIENT,
    "own/base.py": OWN_BASE,
    "own/helper.py": "help = 1\n",
    "own/data/sets.py": "",  # a folder without __init__.py
    "own/never.py": "",
    "own/unused.py": "",
}
NAMES = "strategy.server._target_=own.server.Mine", "strategy.client._target_=own.client.MyClient"

#: Two rounds, and then Ctrl-C; or going on; or the whole run.
SCRIPT = """
import sys
from pathlib import Path
from fedpriv.config.compose import compose
from fedpriv.runs.session import Session
from fedpriv.runs.start import resume_run, start_run

what, folder, *overrides = sys.argv[1:]
real = Session._end_round

def ctrl_c(session, current):
    real(session, current)
    if current.number == 2 and what == "interrupt":
        raise KeyboardInterrupt

Session._end_round = ctrl_c
try:
    resume_run(Path(folder)) if what == "resume" else start_run(compose(overrides), Path(folder))
except KeyboardInterrupt:
    print("interrupted")
except Exception as error:
    print(error)
    sys.exit(1)
"""
OPTIONS = (*SMALL, "strategy=fedavg", "checkpoint.every=1", "operations.report=false", "engine.trainer=sequential")

Play = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with forks(tmp_path_factory.mktemp("forked")) as started:
        yield started


def package(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def digests(forked: Forks, folder: Path, *overrides: str) -> dict[str, str]:
    """`source_files`, found by a process that works in ``folder`` and has imported as little as may be."""
    words = "import json, sys; from fedpriv.config.compose import compose; "
    words += "from fedpriv.config.source_files import source_files; "
    words += "print(json.dumps(source_files(compose(sys.argv[1:]))))"
    code, printed = forked.run(words, *overrides, folder=folder, path=(ROOT,))
    assert code == 0, printed
    found: dict[str, str] = json.loads(printed)
    return found


def reads(module: str) -> bool:
    return any(module == reader or module.startswith(f"{reader}.") for reader in READERS)


#: Halves that are short for what they leave out of another's.
AGN = ("clients/dpfl_agn", "strategies/dpfl_agn")
BUILT_ON = {
    "agn": AGN,
    "anr": AGN,
    "dpsgd": ("clients/agn", *AGN),
    "dpfedavg": ("clients/fedags",),
    "dpfedsnlc": ("clients/fedags",),
    "pfl": ("strategies/adpfl",),
}


def test_a_clipping_rule_brings_the_files_that_it_is_in() -> None:
    """They are reached by name, which no import statement says."""
    fixed, moved = (
        set(source_files(compose(["strategy=fedcad", f"strategy.server.clipping={rule}"]))) for rule in ("fixed", "adp")
    )
    assert {"clients/adpfl.py", "strategies/adpfl.py"} <= moved and not fixed & {
        "clients/adpfl.py",
        "strategies/adpfl.py",
    }


@pytest.mark.parametrize("method", METHODS)
def test_a_method_depends_on_its_own_two_files_and_on_no_other_methods(method: str) -> None:
    found = source_files(compose([f"strategy={method}"]))
    halves = {name for name in found if name.startswith(("strategies/", "clients/"))}
    own = {f"{half}/{name}.py" for half in ("strategies", "clients") for name in ("__init__", method)}
    assert halves == own | {f"{name}.py" for name in BUILT_ON.get(method, ())}
    assert list(found) == sorted(found) and all((ROOT / name).is_file() for name in found)


def test_what_runs_every_method_is_there_and_what_only_reads_runs_is_not() -> None:
    """Were a base or an engine left out, a resumed run would give other updates under the same noise keys."""
    found = set(source_files(compose(["strategy=coqfl"])))
    needed = ["client/base", "client/one_bit", "common/identities", "client/memory", "mechanisms/noise"]
    needed += ["mechanisms/quantisation", "common/seeds", "data/partition", "training/vectorised"]
    needed += [f"engines/{name}" for name in ("loaded", "inprocess", "ray", "flower", "ray_pool", "worker")]
    assert {f"fedpriv/{name}.py" for name in needed} <= found
    assert not [name for name in found if reads(name.removesuffix(".py").replace("/", "."))]
    assert not found & {f"fedpriv/{name}.py" for name in ("new", "audit", "attack", "superlink", "leaderboard")}


def test_all_modules_that_a_run_imports_are_there(forked: Forks, tmp_path: Path) -> None:
    """Read from the files against what Python really imports."""
    script = SCRIPT + "\nfrom fedpriv.config.source_files import source_files\nprint('MODULES', *sys.modules)\n"
    options = (*OPTIONS[:-1], "engine.trainer=vectorised", "strategy=fedcad")
    code, printed = forked.run(script, "run", str(tmp_path / "run"), *options, folder=ROOT)
    assert code == 0, printed
    (line,) = [line for line in printed.splitlines() if line.startswith("MODULES")]
    found = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in source_files(compose(options))
    }
    imported = {name for name in line.split()[1:] if name.split(".")[0] in PROJECT}
    assert len(imported) > 60 and not {name for name in imported - found if not reads(name)}


def test_a_method_of_the_users_brings_what_it_imports(forked: Forks, tmp_path: Path) -> None:
    package(tmp_path, OWN)
    first = digests(forked, tmp_path, "strategy=fedavg", *NAMES)
    used = {name for name in first if name.startswith("own/")}
    assert used == set(OWN) - {"own/never.py", "own/unused.py"}
    assert {"clients/fedavg.py", "strategies/fedavg.py"} <= set(first) and not {n for n in first if "numpy" in n}
    package(tmp_path, {"own/helper.py": "help = 2\n", "own/unused.py": "changed = True\n"})
    assert difference(first, digests(forked, tmp_path, "strategy=fedavg", *NAMES)) == "own/helper.py has changed"


def test_the_users_pictures_and_model_are_among_them(forked: Forks, tmp_path: Path) -> None:
    package(tmp_path, {"mine.py": "import other\n", "other.py": "", "net.py": ""})
    options = ("dataset=custom", "dataset.path=mine.load", "model=custom", "model.path=net.build", "strategy=fedavg")
    assert {"mine.py", "other.py", "net.py"} <= set(digests(forked, tmp_path, *options))


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"a.py": "1", "b.py": "2"}, ""),
        ({"a.py": "1"}, "b.py is gone"),
        ({"a.py": "1", "b.py": "3", "c.py": "4"}, "b.py has changed, c.py is new"),
        (
            {f"{letter}.py": "9" for letter in "abcdefgh"},
            "a.py has changed, b.py has changed, c.py is new, d.py is new, e.py is new, and 3 more",
        ),
    ],
)
def test_the_files_that_differ_are_named(now: dict[str, str], words: str) -> None:
    assert difference({"a.py": "1", "b.py": "2"}, now) == words


@pytest.fixture
def play(forked: Forks, tmp_path: Path) -> Play:
    """``play("interrupt" | "resume" | "run", folder)``: in a copy of the project, which a test may change; the exit
    code, and what was printed.
    """
    project = copied(tmp_path / "project")

    def start(what: str, folder: str) -> tuple[int, str]:
        return forked.run(SCRIPT, what, str(tmp_path / folder), *OPTIONS, folder=project)

    return start


@pytest.mark.slow
def test_only_what_a_run_uses_keeps_it_from_being_resumed(play: Play, run: Run, tmp_path: Path) -> None:
    """Method files that others add, and commands that no run uses, do not; a changed half and a new base do."""
    project = tmp_path / "project"
    assert "interrupted" in play("interrupt", "run")[1]
    half, base = project / "clients" / "fedavg.py", project / "fedpriv" / "client" / "base.py"
    half.write_text(half.read_text() + "\n")
    base.write_text(base.read_text() + "import zzz_base\n")
    (project / "zzz_base.py").write_text("")
    code, printed = play("resume", "run")
    words = "(clients/fedavg.py has changed, fedpriv/client/base.py has changed, zzz_base.py is new): put that back"
    assert code == 1 and words in printed
    for file in (half, base):
        file.write_text((ROOT / file.relative_to(project)).read_text())
    package(project, {"strategies/zzz.py": '"""Nothing."""\n', "clients/zzz.py": '"""Nothing."""\n', "own.py": ""})
    for name in ("fedpriv/commands/new.py", "clients/fedcad.py", "fedpriv/commands/audit.py", "fedpriv/report/page.py"):
        (project / name).write_text((project / name).read_text() + "\n")
    code, printed = play("resume", "run")
    assert code == 0, printed
    assert result_of(tmp_path / "run") == result_of(run(*OPTIONS))
