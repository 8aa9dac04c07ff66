"""Freed memory stays with the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedpriv.training import allocator

FAULTS = """
import resource, numpy as np
from fedpriv.training.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(2**18)  # two MiB: 512 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

usual = [faults()]
print(keep_freed_memory(), usual[0], [faults(), faults()][1])
"""


def test_a_block_that_was_freed_is_taken_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS],
        capture_output=True,
        text=True,
        check=True,
        env={"MALLOC_MMAP_THRESHOLD_": "131072"},
    )
    kept, usual, after = done.stdout.split()
    assert kept == "True" and int(usual) > 20 * 500 and int(after) < 20


def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert allocator.keep_freed_memory() is False
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())  # a C library without mallopt
    assert allocator.keep_freed_memory() is False
