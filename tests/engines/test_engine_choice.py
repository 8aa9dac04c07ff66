"""What ``engine=auto`` takes, and what it says of that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedpriv.runs.preparation import RAY_STARTUP_SECONDS, resolve_engine, why_on_gpus


@pytest.mark.parametrize(
    ("gpus", "seconds", "engine", "words"),
    [
        (0, 1.0, "inprocess", ""),
        (0, 10 * RAY_STARTUP_SECONDS, "ray", ""),
        (1, 10 * RAY_STARTUP_SECONDS, "inprocess", "inprocess: one GPU trains a cohort as one batch"),
        (4, 1.0, "ray", "ray: it has 4 GPUs"),
    ],
)
def test_a_gpu_decides(gpus: int, seconds: float, engine: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    config: Any = SimpleNamespace(engine=SimpleNamespace(name="auto", device="auto"), clients_per_round=8)
    assert resolve_engine(config, seconds, 8) == engine
    assert why_on_gpus().startswith(words) and bool(why_on_gpus()) == bool(words)
