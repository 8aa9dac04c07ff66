"""Where results come from: the commit, the machine, the versions."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from fedpriv.common.versions import versions
from fedpriv.studies.results import Machine, Provenance, RunRecord

#: Folders and files that decide a result. Documents, tests and results themselves do not.
SOURCES = ("fedpriv", "strategies", "clients", "conf", "requirements.txt")


@cache
def commit() -> str:
    """The project's commit, with "+" where its sources differ from it; "unknown" outside a checkout."""
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        call = ["git", "-C", str(root), *arguments]
        return subprocess.run(call, check=True, capture_output=True, text=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", *SOURCES) else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


@cache
def machine() -> Machine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_gib=round(memory, 1),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def here() -> dict[str, Any]:
    """What a record says of where it was made."""
    return {"commit": commit(), "machine": machine(), "versions": versions(), "date": f"{datetime.now(UTC):%Y-%m-%d}"}


def provenance(runs: Sequence[RunRecord], client_epochs: float = 0.0, budget: float | None = None) -> Provenance:
    """Of a study's runs, whichever call of it made them, on whichever machine."""
    machines = Counter(run.machine for run in runs if run.machine)
    libraries = Counter(tuple(run.versions.items()) for run in runs if run.versions)
    main, *other_machines = [found for found, _ in machines.most_common()] or [machine()]
    most, *other_libraries = [dict(found) for found, _ in libraries.most_common()] or [versions()]
    return Provenance(
        commits=tuple(dict.fromkeys(run.commit for run in runs)),
        machine=main,
        versions=most,
        others=(
            *(f"some runs on {found.processor}, {found.cores} cores" for found in other_machines),
            *(f"some runs with {_changed(found, most)}" for found in other_libraries),
        ),
        date=max((run.date for run in runs), default=""),
        core_seconds=round(sum(run.seconds for run in runs), 1),
        client_epochs=round(client_epochs, 1),
        client_epoch_budget=budget,
    )


def _changed(found: Mapping[str, str], most: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items() if most.get(name) != version)
