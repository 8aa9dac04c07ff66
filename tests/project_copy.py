"""A copy of the project, in which methods may be made and tried."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def copied(folder: Path) -> Path:
    """All that a method needs to be trained, audited and tested."""
    for part in ("fedpriv", "strategies", "clients", "conf", "tests", "tools"):
        shutil.copytree(ROOT / part, folder / part)  # what is compiled already is worth seconds
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def python(project: Path, *arguments: str) -> str:
    """What ``python -m`` prints in a copy, with the copy's own code."""
    environment = os.environ | {"PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
