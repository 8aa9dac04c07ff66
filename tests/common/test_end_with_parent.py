"""A process that does not outlive the one that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from processes import state, wait_until

CHILD = """
import time
from fedpriv.common.stopping import end_with_parent, stop
end_with_parent(0.5)
print("ready", flush=True)
while not stop.requested:
    time.sleep(0.05)
open({asked!r}, "w").close()
time.sleep(10**6)
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(10**6)
"""


def test_a_child_is_asked_to_stop_and_then_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    code = PARENT.format(child=CHILD.format(asked=str(asked)))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
    wait_until(lambda: state(child) in ("", "Z"))
    assert asked.exists()
