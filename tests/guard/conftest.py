"""A node's `init` tries its sandbox; of the many that tests begin, none does: `test_probe.py` tries it."""

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpriv.guard import probe


@pytest.fixture(autouse=True)
def _not_probed(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.module.__name__ != "test_probe":
        monkeypatch.setattr(probe, "probe", lambda: probe.Probed(0, 0, 0, (), 0.0))


@pytest.fixture
def kernel_alone() -> Iterator[None]:
    """One test at a time, of all processes, changes or reads what this machine's kernel has once."""
    with open(Path(tempfile.gettempdir()) / "fedpriv-tests-kernel", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
