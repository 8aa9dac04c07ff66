"""Hydra's compositions, made once for all processes of a session of tests.

Hydra takes a tenth of a second for a choice of files, and the suite makes some hundreds of choices, most of them in
several processes. What a composition depends on is its key; one that fails is never kept.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fedpriv.config import compose as module


@contextmanager
def shared(folder: Path) -> Iterator[None]:
    """While it lasts, compositions are read from ``folder``, or made and written there."""
    folder.mkdir(parents=True, exist_ok=True)
    make = module._chosen.__wrapped__

    @lru_cache(maxsize=256)
    def read_or_make(choices: tuple[str, ...], sources: tuple[Any, ...]) -> Any:
        file = folder / hashlib.sha256(repr((choices, sources)).encode()).hexdigest()
        if file.exists():
            return pickle.loads(file.read_bytes())
        made = make(choices, sources)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as written:
            pickle.dump(made, written)
        os.replace(written.name, file)
        return made

    with patch.object(module, "_chosen", read_or_make):
        yield
