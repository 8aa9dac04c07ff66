"""Pins for `flwr run`, which installs the app's dependencies anew for each run: pyproject.toml's [tool.uv] names the
versions of deploy/requirements.txt. `make lock` calls it. `python -m tools.pins none` takes them out, for a new lock.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT, LOCK = ROOT / "pyproject.toml", ROOT / "deploy" / "requirements.txt"
HEAD = "[tool.uv]\n# What `flwr run` installs: `make lock` writes the versions of deploy/requirements.txt here.\n"


def pins(lock: str) -> list[str]:
    """The requirements of a lock, without hashes."""
    found = (line.split("\\")[0].strip() for line in lock.splitlines() if re.match(r"[A-Za-z0-9]", line))
    return [line.replace('"', "'") for line in found]


def with_pins(project: str, wanted: list[str]) -> str:
    """pyproject.toml with exactly these pins."""
    without = re.sub(r"\[tool\.uv\]\n.*?\n\]\n\n", "", project, flags=re.DOTALL)
    lines = "".join(f'    "{pin}",\n' for pin in wanted)
    block = f"{HEAD}constraint-dependencies = [\n{lines}]\n\n" if wanted else ""
    return without.replace("[tool.ruff]\n", f"{block}[tool.ruff]\n", 1)


if __name__ == "__main__":
    PROJECT.write_text(with_pins(PROJECT.read_text(), [] if "none" in sys.argv[1:] else pins(LOCK.read_text())))
