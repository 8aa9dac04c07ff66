"""Clients of DPFL-AGN and its kin at a site of their own, and what they are asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import making
import numpy as np
import pytest
from reference.federation import client_data, linear_model, make_site

from clients.dpsgd import DPSGDClient
from fedpriv.client.contract import PublicFacts
from fedpriv.config.schema import LocalConfig
from fedpriv.training.sequential import LocalData, SequentialTrainer

DELTA, EXAMPLES, BATCH = 1e-5, 40, 8
ALL = ("dpsgd", "agn", "anr", "dpfl_agn")
FACTS = PublicFacts(EXAMPLES, EXAMPLES, BATCH, num_rounds=20, clients_per_round=4)
LOCAL = LocalConfig(epochs=1, batch_size=BATCH, lr=0.1, momentum=0.0, sampler="poisson")


def some(rows: Any = None) -> LocalData:
    data = client_data(0, EXAMPLES)
    return data if rows is None else LocalData(data.inputs[rows], data.targets[rows])


def at_work(kind: type[Any] = DPSGDClient, store: Any = None, max_epsilon: float | None = None, **options: Any):
    """A client at a site of its own with a small model."""
    options = {"noise_multiplier": 1.0, "clip_norm": 1.0, "facts": FACTS} | options
    site = make_site(
        trainer=SequentialTrainer(linear_model(), LOCAL), store=store, load_data=some, max_epsilon=max_epsilon
    )
    return making.client(kind, site=site, **options)


def theta() -> np.ndarray:
    return linear_model().theta.numpy().copy()


def ask(client: Any, server_round: int, start: np.ndarray | None = None, **options: Any) -> np.ndarray:
    call = {"round": server_round, "attempt": 0, **options}
    return client.fit([theta() if start is None else start], call)[0][0]


def rows_drawn(monkeypatch: pytest.MonkeyPatch, client: Any) -> list[np.ndarray]:
    """The rows of every batch that the client asks for from now on."""
    seen: list[np.ndarray] = []

    def load(rows: np.ndarray) -> LocalData:
        seen.append(rows)
        return some(rows)

    client.site = replace(client.site, load_data=load)
    return seen
