"""What a run imports before its first round has ended, and what it leaves for later."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedpriv.common.command_line import importing
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker

#: Of no use before the first round of a simulation in one process has ended. scipy itself loads its parts at their use.
LATER = ("matplotlib", "jinja2", "ray", "datasets", "pandas", "dp_accounting", "torchvision", "torch._dynamo")
LATER = (*LATER, "transformers", "peft", "scipy.special", "scipy.optimize", "scipy.stats", "scipy.linalg")

#: The default job as a command, which is interrupted after its first round.
SCRIPT = """
import json, runpy, sys
from pathlib import Path
later, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
sys.argv = ["fedpriv", f"hydra.run.dir={folder}", "checkpoint.every=1", "num_rounds=3"]

def watch():
    from fedpriv.runs.session import Session
    real = Session._end_round
    def end_round(session, current):
        if current.number == 2:
            raise KeyboardInterrupt
        imported = [name for name in later if name in sys.modules]
        before = (folder / "private" / "labels.png").exists()
        real(session, current)
        print(json.dumps([imported, before, (folder / "private" / "labels.png").exists()]))
    Session._end_round = end_round

import fedpriv.commands.runs
real_start = fedpriv.commands.runs._run_hydra
def start(*arguments):
    watch()
    return real_start(*arguments)
fedpriv.commands.runs._run_hydra = start
try:
    runpy.run_module("fedpriv", run_name="__main__")
except SystemExit as end:
    print(end.code)
"""


def test_a_first_round_waits_for_no_plot_and_no_import_that_it_does_not_need(tmp_path: Path) -> None:
    _ = Worker(compose()).data  # into the cache: making pictures and a partition imports nearly all of these
    command = [sys.executable, "-c", SCRIPT, json.dumps(LATER), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    lines = done.stdout.splitlines()
    assert lines[-1] == "130", done.stderr
    imported, before, after = json.loads(next(line for line in lines if line.startswith("[")))
    assert imported == [] and not before and after


@pytest.mark.parametrize("collects", [True, False])
def test_imports_leave_the_collector_as_they_found_it(collects: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[None] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(None))
    (gc.enable if collects else gc.disable)()
    try:
        with importing():
            assert not gc.isenabled()
        assert gc.isenabled() == collects and not frozen  # nothing came that would stay
        with pytest.raises(ModuleNotFoundError), importing():
            monkeypatch.setitem(sys.modules, "some_module", gc)
            import no_such_module  # type: ignore[import-not-found]  # noqa: F401
        assert gc.isenabled() == collects and len(frozen) == 1
    finally:
        gc.enable()
