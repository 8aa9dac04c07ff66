"""Whole ServerApps as targets: the strategy that one starts is checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg as OldAverage
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Strategy

from fedpriv import flower
from fedpriv.checking.checks import check_object
from fedpriv.checking.flower_strategies import StrategySubject, recognises
from fedpriv.checking.functions import NotTaken
from fedpriv.checking.subject import Question

QUESTION = Question(dims=(8,))


def with_main(body: Any) -> ServerApp:
    app = ServerApp()
    app.main()(body)
    return app


def test_the_strategy_that_an_app_starts_is_checked() -> None:
    after: list[str] = []

    def main(grid: Grid, context: Context) -> None:
        assert len(list(grid.get_node_ids())) == 10
        inside = FedAvg(fraction_evaluate=0.0)
        strategy = DifferentialPrivacyServerSideFixedClipping(inside, 1.5, 1.0, 10)
        strategy.start(grid=grid, initial_arrays=ArrayRecord({"w": Array(np.zeros(3))}), num_rounds=2)
        after.append("the model is saved")

    before = Strategy.start
    found = recognises(with_main(main), QUESTION)
    assert Strategy.start is before
    assert isinstance(found, StrategySubject)
    assert found.recognised[0].event is not None
    assert found.recognised[0].event.gaussian_multiplier == 1.5
    assert after == []


def test_the_strategy_of_an_older_app_is_checked() -> None:
    def components(context: Context) -> ServerAppComponents:
        return ServerAppComponents(strategy=OldAverage(), config=ServerConfig(num_rounds=1))

    found = recognises(ServerApp(server_fn=components), QUESTION)
    assert isinstance(found, StrategySubject)
    assert not found.recognised


def test_an_app_without_a_strategy_is_told() -> None:
    with pytest.raises(NotTaken, match="starts no strategy"):
        recognises(with_main(lambda grid, context: None), QUESTION)


def test_halves_of_the_methods_here_are_sent_to_their_audit() -> None:
    """They answer each other alone: to a check every message is a stranger's, and its refusal would look private."""

    def main(grid: Grid, context: Context) -> None:
        flower.FedLDP().start(grid=grid, initial_arrays=ArrayRecord({"w": Array(np.zeros(3))}))

    mod = flower.fedldp_mod(noise_multiplier=1.0)
    app = ClientApp(mods=[mod])
    app.train()(lambda message, context: message)
    half = flower.client_of("fedldp")
    old = ClientApp(lambda context: half(lambda arrays, config: (arrays, 20), context=context).to_client())
    for target in (flower.FedLDP(), with_main(main), mod, [mod], app, old):
        check = check_object(target, QUESTION, seconds=5.0)
        assert check.why_not is not None and "`fedpriv audit strategy=fedldp`" in check.why_not, target
