"""Messages for guarded apps, and apps called as Flower calls them, without a guard."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata

APPS = Path(__file__).parent / "apps"
HOSTILE = Path(__file__).parent / "hostile_apps"
Values = Mapping[str, bool | float | int | str]


def message_of(arrays: Mapping[str, np.ndarray] | list[np.ndarray]) -> Message:
    """A training message: of the message API for named arrays, of `NumPyClient` for a list."""
    if isinstance(arrays, list):
        content = RecordDict({"fitins.parameters": ArrayRecord(arrays), "fitins.config": ConfigRecord({})})
    else:
        content = RecordDict({"arrays": ArrayRecord({name: Array(array) for name, array in arrays.items()})})
    metadata = Metadata(1, "message", 1, 2, "", "", time.time(), 1000.0, "train")
    return make_message(metadata=metadata, content=content)


def context_of(data: Path, run_config: Values) -> Context:
    return Context(1, 2, {"data-path": str(data)}, RecordDict(), dict(run_config))


def bare(app: Path, message: Message, context: Context) -> Message:
    """The reply of an app in this process."""
    from flwr.clientapp.utils import get_load_client_app_fn

    path = list(sys.path)
    try:
        publisher = "example/" + ("hostile" if app.name.startswith("hostile") else app.name)
        return get_load_client_app_fn("", str(app), True)(publisher, "1.0.0", "")(message, context)
    finally:
        sys.path[:] = path


def write_rows(path: Path, rows: int, columns: int = 4, seed: int = 0) -> Path:
    """A CSV file that the honest apps read: a header, normal columns, and a label that depends on them."""
    table = np.random.default_rng(seed).normal(size=(rows, columns))
    labels = (table.sum(axis=1) > 0).astype(int)
    lines = [
        ",".join([*(repr(float(value)) for value in row), str(label)]) for row, label in zip(table, labels, strict=True)
    ]
    path.write_text(
        ",".join([f"column{number}" for number in range(columns)] + ["label"]) + "\n" + "\n".join(lines) + "\n"
    )
    return path
