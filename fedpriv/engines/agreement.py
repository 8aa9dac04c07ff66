"""What the processes of one run must have in common, wherever they are: source files, versions, examples."""

from __future__ import annotations

import hashlib
import platform

import numpy as np

from fedpriv.common.errors import FedprivError, RunFailed
from fedpriv.common.versions import library_versions
from fedpriv.config.schema import Config
from fedpriv.config.source_files import NAMED, source_files
from fedpriv.engines.worker import worker_for

#: Examples of each part of the data set that are compared, evenly spaced; of the targets, all.
COMPARED = 200


def facts(config: Config) -> dict[str, str]:
    """Name -> what this process has of it: versions, examples, source files. Raises what loading the data set does."""
    dataset, digest = worker_for(config).data.dataset, hashlib.sha256()
    for part in (dataset.train, dataset.test):
        digest.update(np.ascontiguousarray(part.targets).tobytes())
        for row in np.linspace(0, len(part.targets) - 1, COMPARED).astype(int) if len(part.targets) else ():
            digest.update(np.ascontiguousarray(part.inputs[row]).tobytes())
    return library_versions() | {"examples": digest.hexdigest()[:16]} | source_files(config)


def agree(config: Config, expected: dict[str, str]) -> None:
    """Raises `RunFailed` that names this machine and all in which it differs from ``expected``."""
    try:
        found = facts(config)
    except FedprivError as error:
        raise RunFailed(f"a worker on {platform.node()} cannot take part: {error}") from None
    words = [
        f"{name} {found.get(name, 'missing')}, not {expected.get(name, 'there')}"
        for name in expected | found
        if found.get(name) != expected.get(name)
    ]
    if words:
        words = [*words[:NAMED], *([f"and {len(words) - NAMED} more"] if len(words) > NAMED else [])]
        raise RunFailed(f"a worker on {platform.node()} differs from this process: {', '.join(words)}")
