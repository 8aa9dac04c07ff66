"""What the processes of one run must have in common, wherever they are: code, versions, pictures."""

from __future__ import annotations

import hashlib
import platform

import numpy as np

from fedpriv.config import Config
from fedpriv.errors import FedprivError, RunFailed
from fedpriv.run_folder import versions
from fedpriv.worker import worker_for

#: Pictures of each part of the data set that are compared, evenly spaced; of the labels, all.
COMPARED = 200


def facts(config: Config) -> dict[str, str]:
    """Name -> what this process has of it. Raises what loading the data set raises."""
    dataset, digest = worker_for(config).data.dataset, hashlib.sha256()
    for part in (dataset.train, dataset.test):
        digest.update(np.ascontiguousarray(part.labels).tobytes())
        for row in np.linspace(0, len(part.labels) - 1, COMPARED).astype(int) if len(part.labels) else ():
            digest.update(np.ascontiguousarray(part.images[row]).tobytes())
    return versions() | {"pictures": digest.hexdigest()[:16]}


def agree(config: Config, expected: dict[str, str]) -> None:
    """Raises `RunFailed` that names this machine and all in which it differs from ``expected``."""
    try:
        found = facts(config)
    except FedprivError as error:
        raise RunFailed(f"a worker on {platform.node()} cannot take part: {error}") from None
    words = [f"{name} {found[name]}, not {value}" for name, value in expected.items() if found[name] != value]
    if words:
        raise RunFailed(f"a worker on {platform.node()} differs from this process: {', '.join(words)}")
