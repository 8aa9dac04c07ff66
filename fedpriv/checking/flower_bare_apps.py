"""What a bare Flower ClientApp needs to be played: its functions and mods, its model, its configuration.

An app is asked as partitions of one data set, as Flower's simulation does. Its model is looked for in the module that
defines it: an `ArrayRecord`, a list of arrays, a torch module, or a function or class without arguments that makes one;
an older client is asked for its parameters. The first that the app trains with is used. The configuration is that of
the nearest `pyproject.toml`. Nothing is recognised by its name.
"""

from __future__ import annotations

import inspect
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.client.mod.utils import make_ffn
from flwr.clientapp import ClientApp
from flwr.common import GetParametersIns, Parameters, parameters_to_ndarrays

from fedpriv.checking.flower_extremes import at_most
from fedpriv.checking.flower_messages import CLIENT
from fedpriv.engines.contexts import empty_context
from fedpriv.engines.grid import RUN_ID

Model = dict[str, Any]
#: Seconds of CPU that making a model may take, and folders above a module that are looked through.
SECONDS, FOLDERS = 5.0, 4
_FILE = make_ffn.__code__.co_filename


@dataclass(frozen=True)
class Parts:
    """functions: of an app by type of message ("train", "train.ACTION", "evaluate", "query"), innermost; mods: of each,
    outermost first. old: it is a client_fn, which answers all types.
    """

    functions: Mapping[str, Callable[..., Any]]
    mods: Mapping[str, list[Any]] = field(default_factory=dict)
    old: bool = False

    @property
    def first(self) -> str:
        """The type of message that is a round: training where the app trains."""
        order = ("train", "query", "evaluate")
        return min(self.functions, key=lambda name: (order.index(name.partition(".")[0]), "." in name))

    @property
    def module(self) -> dict[str, Any]:
        """Variables of the module that defines the first function."""
        found: dict[str, Any] = getattr(inspect.unwrap(self.functions[self.first]), "__globals__", {})
        return found


def parts_of(app: ClientApp) -> Parts:
    """Mods of the app and of each function (`@app.train(mods=[...])`) are taken off the functions that they wrap."""
    whole = getattr(app, "_call", None)
    if whole is not None:
        inner, mods = unwrapped(whole)
        found = [one for one in _held(inner) if callable(one)]
        makes: Any = found[0] if found else inner
        return Parts({"train": makes, "evaluate": makes}, {"train": mods, "evaluate": mods}, old=True)
    functions, stacks = {}, {}
    for full, function in getattr(app, "_registered_funcs", {}).items():
        name = full.removesuffix(".default")
        functions[name], stacks[name] = unwrapped(function)
    return Parts(functions, stacks)


def unwrapped(function: Any) -> tuple[Any, list[Any]]:
    """(what Flower's `make_ffn` was given, its mods, outermost first)."""
    mods: list[Any] = []
    while isinstance(function, FunctionType) and function.__code__.co_filename == _FILE and function.__closure__:
        held = dict(zip(function.__code__.co_freevars, _held(function), strict=True))
        function = held["_ffn"]
        mods.append(held["_mod"])
    return function, mods


def _held(function: Any) -> list[Any]:
    return [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]


# --- the configuration ---------------------------------------------------------------------------------------


def run_config(parts: Parts) -> dict[str, Any]:
    return config_near(parts.module.get("__file__"))


def config_near(place: str | None) -> dict[str, Any]:
    """`tool.flwr.app.config` of the nearest pyproject.toml above an app's file, flat; empty where there is none."""
    for folder in list(Path(place).resolve().parents)[:FOLDERS] if place else ():
        project = folder / "pyproject.toml"
        if project.is_file():
            try:
                found = tomllib.loads(project.read_text())
                return _flat(found["tool"]["flwr"]["app"]["config"])
            except (tomllib.TOMLDecodeError, OSError, KeyError, TypeError):
                return {}
    return {}


def _flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, part in value.items():
        found |= _flat(part, f"{before}{key}.") if isinstance(part, Mapping) else {before + key: part}
    return found


# --- the model -----------------------------------------------------------------------------------------------


def models(parts: Parts) -> Iterator[tuple[str, Model]]:
    """(words, arrays by name) of every model that the app's module has or makes, and last of none at all."""
    values = [value for name, value in list(parts.module.items()) if not name.startswith("__")]
    for value in values:
        if (found := as_model(value)) is not None:
            yield "its module", found
    for value in values:
        if (found := _made(value, parts.module.get("__name__"))) is not None:
            yield "a function or class of its module", found
    if parts.old and (found := _of_client(parts.functions["train"])) is not None:
        yield "its client's parameters", found
    yield "nowhere: it was sent without arrays", {}


def as_model(value: Any) -> Model | None:
    """Arrays by name of what holds a model, or None."""
    torch = sys.modules.get("torch")
    if isinstance(value, ArrayRecord):
        return {name: array.numpy() for name, array in value.items()}
    if isinstance(value, Parameters):
        value = parameters_to_ndarrays(value)
    if torch is not None and isinstance(value, torch.nn.Module):
        value = value.state_dict()
    if isinstance(value, Mapping) and value and all(isinstance(one, str) for one in value):
        arrays = {name: _array(part) for name, part in value.items()}
        return None if any(part is None for part in arrays.values()) else arrays
    if isinstance(value, list | tuple) and value and all(isinstance(one, np.ndarray) for one in value):
        return {str(place): array for place, array in enumerate(value)}
    return None


def _of_client(makes: Callable[..., Any]) -> Model | None:
    """What an older client answers when it is asked for its parameters."""
    try:
        with at_most(SECONDS):
            client = makes(empty_context(RUN_ID, CLIENT, 0, 2))
            client = client.to_client() if hasattr(client, "to_client") else client
            return as_model(client.get_parameters(GetParametersIns({})).parameters)
    except Exception:  # of foreign code, which may have none
        return None


def _array(value: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return value if isinstance(value, np.ndarray) else None


def _made(value: Any, module: str | None) -> Model | None:
    """The model that a function or a torch class makes without arguments."""
    torch = sys.modules.get("torch")
    kind = torch is not None and inspect.isclass(value) and issubclass(value, torch.nn.Module)
    package = str(module).partition(".")[0]
    own = getattr(value, "__module__", "").partition(".")[0] == package
    if not own or not (kind or inspect.isfunction(value)):
        return None
    try:
        needed = [one for one in inspect.signature(value).parameters.values() if one.default is one.empty]
        if any(one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in needed):
            return None
        with at_most(SECONDS):
            return as_model(value())
    except Exception:  # of foreign code, which may want what is not there
        return None
