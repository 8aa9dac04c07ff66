"""Pure functions that are slow and asked the same in many files: answered once for all processes of a session of tests.

dp-accounting takes a tenth of a second for the loss distribution of a sampled Gaussian; the suite asks for some
hundreds of them, most in several processes. All that an answer depends on is its key, the folder is the session's own,
and what raises is never kept.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fedpriv.privacy.events import PoissonGaussian


def kept(folder: Path, make: Callable[..., Any]) -> Callable[..., Any]:
    """``make``, whose answers are read from ``folder``, or made and written there."""
    folder.mkdir(parents=True, exist_ok=True)

    @lru_cache(maxsize=256)
    def read_or_make(*key: Any) -> Any:
        file = folder / hashlib.sha256(repr(key).encode()).hexdigest()
        if file.exists():
            return pickle.loads(file.read_bytes())
        made = make(*key)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as written:
            pickle.dump(made, written)
        os.replace(written.name, file)
        return made

    return read_or_make


@contextmanager
def shared(folder: Path) -> Iterator[None]:
    """While it lasts, loss distributions are kept in ``folder``."""
    sampled = kept(folder / "loss_distributions", PoissonGaussian.loss_distribution)
    with patch.object(PoissonGaussian, "loss_distribution", sampled):
        yield
