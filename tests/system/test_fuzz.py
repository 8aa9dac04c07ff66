"""Coverage-guided fuzzing, each fuzzer in a process of its own: libFuzzer ends the process that it runs in.

Here for a few seconds, with a fixed seed; `make stress` runs them at length.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tripwires import Tripped, armed

TESTS = Path(__file__).resolve().parents[1]
STRESS = "FEDPRIV_STRESS" in os.environ
#: Inputs here and in `make stress`. What test_requests.py samples here is found by coverage there alone.
RUNS = (
    {"messages": 1_000_000, "clients": 100_000, "options": 20_000, "folders": 20_000}
    if STRESS
    else {"messages": 2500, "options": 800, "folders": 250}
)


@pytest.mark.parametrize("fuzzer", RUNS)
def test_inputs_are_read_or_refused(fuzzer: str, tmp_path: Path) -> None:
    limits = [f"-runs={RUNS[fuzzer]}", "-seed=1", f"-artifact_prefix={tmp_path}/"]
    command = [sys.executable, str(TESTS / "fuzz.py"), fuzzer, *limits]
    environment = os.environ | {"PYTHONPATH": str(TESTS.parent)}
    # Linux hands a process the peak memory of its starter, which libFuzzer takes for its own: a shell between.
    done = subprocess.run(
        ["sh", "-c", '"$@"; exit $?', "sh", *command], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-8000:]
    tried = re.search(r"stat::number_of_executed_units: (\d+)", said)
    assert tried is not None and int(tried[1]) >= RUNS[fuzzer]
    if STRESS:
        print(fuzzer, *[line for line in said.splitlines() if "DONE" in line or line.startswith("stat::")], sep="\n  ")


class Sent:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return str, ("unpickled",)


PICKLED = pickle.dumps(Sent())


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda: eval("1 + 1"),
        lambda: exec("pass"),
        lambda: __import__("ast").literal_eval("[1]"),
        lambda: pickle.loads(PICKLED),
        lambda: subprocess.run(["true"]),
        lambda: os.system("true"),
        lambda: Path(os.devnull).write_text("x"),
        lambda: __import__("antigravity"),
    ],
)
def test_the_wires_trip(forbidden: Callable[[], object]) -> None:
    with pytest.raises(Tripped), armed():
        forbidden()


def test_the_wires_let_reading_pass() -> None:
    with armed():
        assert Path(__file__).read_text()
