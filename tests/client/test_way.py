"""One update's way through the client side: which files it crosses between the engine's delivery and the reply."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord

from fedpriv.common.messages import pack_vector
from fedpriv.config.compose import compose
from fedpriv.engines.adapter import make_apps
from fedpriv.engines.grid import client_of, stamp
from fedpriv.engines.inprocess import InProcessGrid
from fedpriv.engines.worker import Worker, adopt
from fedpriv.runs.preparation import make_strategy

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("num_clients=2", "clients_per_round=2", "num_rounds=2", "engine=inprocess", "engine.trainer=sequential")
#: A file more is a reason to look for one less.
MOST = {"fedavg": 22, "fedldp": 28}


def crossed(strategy: str) -> set[str]:
    """Files of the project in which something runs while a client answers its second request."""
    config = compose([f"strategy={strategy}", *SMALL, "dataset.train_examples=200"])
    worker = adopt(config, Worker(config))
    server, grid = make_strategy(config, worker), InProcessGrid(config, make_apps(config)[1])
    theta = pack_vector(worker.initial_parameters())
    assert len(list(grid.send_and_receive(server.configure_train(1, theta, ConfigRecord(), grid)))) == 2
    message = next(iter(server.configure_train(2, theta, ConfigRecord(), grid)))
    stamp(message, "message")
    context, files = grid.context_of(client_of(message)), set[str]()

    def seen(frame: Any, event: str, argument: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(ROOT) and ".venv" not in file.parts:
            files.add(file.relative_to(ROOT).as_posix())

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        reply = grid.client_app(message, context)
    finally:
        sys.setprofile(before)
    assert reply.has_content()
    return {file for file in files if file.startswith(("fedpriv/", "clients/"))}


@pytest.mark.parametrize("strategy", sorted(MOST))
def test_an_updates_way_does_not_grow(strategy: str) -> None:
    files = crossed(strategy)
    assert {"fedpriv/engines/adapter.py", "fedpriv/client/one_path.py", "fedpriv/training/sequential.py"} <= files
    assert len(files) <= MOST[strategy], sorted(files)
    # The options were checked before: no message has them read, composed or checked again.
    assert not [file for file in files if file.startswith("fedpriv/config/")]
