"""Differentially private federated learning whose privacy claims are checked.

`python -m fedpriv --help` shows the command line; `fedpriv.load(RUN_FOLDER)` gives a finished run's model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from fedpriv.predict import TrainedModel

__version__ = "0.1.0"


def load(folder: str | Path) -> TrainedModel:
    """The model of a finished run. Raises `RunFolderError` where there is none."""
    from fedpriv.predict import load_model

    return load_model(folder)
