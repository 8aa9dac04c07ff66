"""Every method as a server half and a client half for any Flower app.

    from fedpriv.flower import FedCAD, FedCADClient, fedcad_mod

    strategy = FedCAD(noise_multiplier=0.3, clip_norm=1.0, diff=0.5)      # a strategy of Flower's: strategy.start(...)
    client = FedCADClient(train)                                          # a NumPyClient around your own training
    app = ClientApp(mods=[fedcad_mod()])                                  # or a mod before an app as it is

Names are those of the methods' own classes; options, those of their YAML files (docs/flower.md).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from fedpriv.apps.client import AppClient
from fedpriv.apps.server import AppStrategy
from fedpriv.apps.server import Privacy as Privacy
from fedpriv.apps.trainer import Trainer as Trainer
from fedpriv.config.halves import locate
from fedpriv.config.method_pairs import target
from fedpriv.config.methods import METHODS


@cache
def strategy_of(method: str) -> type[AppStrategy]:
    """The server half of a method for apps; also of one of your own, in the working directory (docs/tutorial.md)."""
    kind = locate(target(method, "server"), "strategy.server._target_")
    return type(kind.__name__, (AppStrategy, kind), {"method": method, "__doc__": kind.__doc__, "__module__": __name__})


@cache
def client_of(method: str) -> type[AppClient]:
    """The client half of a method for apps; see `strategy_of`."""
    name = target(method, "client").rpartition(".")[2]
    return type(name, (AppClient,), {"method": method, "__module__": __name__})


@cache
def _names() -> dict[str, Any]:
    """Name -> (maker, method)."""
    found: dict[str, Any] = {}
    for method in METHODS:
        found[target(method, "server").rpartition(".")[2]] = strategy_of, method
        found[target(method, "client").rpartition(".")[2]] = client_of, method
        found[f"{method}_mod"] = (lambda name: client_of(name).mod), method
    return found


def __getattr__(name: str) -> Any:
    if name.startswith("__") or name not in _names():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__dir__())}")
    make, method = _names()[name]
    return make(method)


def __dir__() -> list[str]:
    return sorted([*_names(), "Privacy", "Trainer"])
