"""The strategy of a whole Flower ServerApp: what it starts is checked as a strategy is."""

from __future__ import annotations

from typing import Any

import flwr.server.strategy as older
import flwr.serverapp.strategy as newer
from flwr.serverapp import ServerApp

from fedpriv.checking.flower_bare_apps import config_near
from fedpriv.checking.flower_cohort import Nodes
from fedpriv.checking.release_function import NotTaken
from fedpriv.engines.contexts import empty_context
from fedpriv.engines.grid import RUN_ID, SERVER_NODE, identify_server

#: Nodes that the app finds connected.
NODES = 10


class _Started(BaseException):
    """Ends an app where it starts its strategy; no app's `except Exception` takes it."""

    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self.strategy = strategy


def strategy_of(app: ServerApp) -> Any:
    """The strategy that an app's function of components returns, or whose ``start`` its main function calls; the app
    runs up to there, with ten nodes and the configuration of the nearest pyproject.toml. Raises `NotTaken`.
    """
    makes, main = getattr(app, "_server_fn", None), getattr(app, "_main", None)
    function = main or makes
    given = empty_context(RUN_ID, SERVER_NODE, 0, NODES)
    given.run_config.update(config_near(getattr(function, "__globals__", {}).get("__file__")))
    if main is None:
        strategy = getattr(app, "_strategy", None) if makes is None else makes(given).strategy
    else:
        strategy = _started(main, given)
    if not isinstance(strategy, newer.Strategy | older.Strategy):
        raise NotTaken("the app starts no strategy of Flower: check what it does with replies as a function or a class")
    return strategy


def _started(main: Any, context: Any) -> Any:
    def start(self: Any, *_: Any, **__: Any) -> Any:
        raise _Started(self)

    before = newer.Strategy.start
    newer.Strategy.start = start  # type: ignore[method-assign]
    identify_server()
    try:
        main(Nodes(NODES), context)
    except _Started as found:
        return found.strategy
    finally:
        newer.Strategy.start = before  # type: ignore[method-assign]
    return None
