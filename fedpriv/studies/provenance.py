"""Where results come from: the commit, the machine, the versions, and on what their last bits depend."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from fedpriv.common.systems import cores
from fedpriv.common.versions import commit, library_versions, made_by
from fedpriv.report.words import many
from fedpriv.studies.results import Machine, Provenance, RunRecord


@cache
def machine() -> Machine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(
        processor=" and ".join(filter(None, (_processor(), _gpu()))),
        cores=cores(),
        memory_gib=round(memory, 1),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
    )


def _processor() -> str:
    return _cpu_facts().get("model name") or platform.processor() or platform.machine()


@cache
def _gpu() -> str:
    """The name of the GPU on which runs train by default (`engine.device=auto`); "" without one."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def _cpu_facts() -> dict[str, str]:
    """Of the first core, as Linux names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def arithmetic() -> dict[str, str]:
    """On what the last bits of a result depend, beside the code and the options: the processor's model (libraries take
    other instructions and other orders of summation on others), what torch makes of it, threads, a GPU, versions.
    Where it is equal, the same code gives the same bits on a CPU. Asked after a job, which sets its threads.
    """
    import torch

    facts = _cpu_facts()
    model = ", ".join(f"{name} {facts[name]}" for name in ("cpu family", "model") if name in facts)
    versions = {name: version for name, version in library_versions().items() if name in ("python", "torch", "numpy")}
    return {
        "processor": ", ".join(filter(None, (_processor(), model))),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": str(torch.get_num_threads()),
        **({"gpu": _gpu()} if _gpu() else {}),
        **versions,
    }


def here() -> dict[str, Any]:
    """What a record says of where it was made."""
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    return {"commit": commit(), "machine": machine(), "versions": library_versions(), "date": date}


#: A key of the versions of older records: a digest of the sources, by which results were current or not before they
#: were known by commit and options.
DIGEST = "code"


def provenance(runs: Sequence[RunRecord], client_epochs: float = 0.0, budget: float | None = None) -> Provenance:
    """Of a study's runs, whichever call of it made them, on whichever machine."""
    machines = Counter(run.machine for run in runs if run.machine)
    libraries = Counter(tuple(_libraries(run).items()) for run in runs if run.versions)
    main, *other_machines = [found for found, _ in machines.most_common()] or [machine()]
    most, *other_libraries = [dict(found) for found, _ in libraries.most_common()] or [library_versions()]
    return Provenance(
        commits=tuple(name for name, _ in Counter(run.commit for run in runs).most_common()),
        machine=main,
        versions=most,
        others=(
            *(f"{many(machines[found], 'run')} on {found.processor}, {found.cores} cores" for found in other_machines),
            *(f"{many(libraries[tuple(one.items())], 'run')} with {_changed(one, most)}" for one in other_libraries),
        ),
        remarks=(*_named_by_digest(runs), *_superseded(runs)),
        date=max((run.date for run in runs), default=""),
        core_seconds=round(sum(run.seconds for run in runs), 1),
        client_epochs=round(client_epochs, 1),
        client_epoch_budget=budget,
    )


def _libraries(run: RunRecord) -> dict[str, str]:
    return {name: version for name, version in run.versions.items() if name != DIGEST}


def _changed(found: Mapping[str, str], most: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items() if most.get(name) != version)


def _named_by_digest(runs: Sequence[RunRecord]) -> Iterator[str]:
    old = [run for run in runs if DIGEST in run.versions]
    for digest in dict.fromkeys(run.versions[DIGEST] for run in old):
        made = [run.commit for run in old if run.versions[DIGEST] == digest]
        commits = ", ".join(made_by(name) for name in dict.fromkeys(made))
        count = f"{len(made):,} of {len(runs):,} runs" if len(made) < len(runs) else f"all {len(runs):,} runs"
        yield (
            f"made before results were named by commit and options: {count} ({commits}), whose records also carry a "
            f"digest of these commits' sources, {digest}"
        )


def _superseded(runs: Sequence[RunRecord]) -> Iterator[str]:
    marked = [run for run in runs if run.superseded]
    for reason in dict.fromkeys(run.superseded for run in marked):
        of = Counter(str(run.summary.get("strategy", run.kind)) for run in marked if run.superseded == reason)
        yield f"to be made anew: {', '.join(f'{count} of {name}' for name, count in of.items())}: {reason}"
