"""What an NVFlare filter is given: a result of a client and a context, of the package where it is imported.

Where it is not, they are of this file: they have what the package's documentation says of ``Shareable``, ``DXO`` and
``FLContext``, and a filter that takes either of the first two finds what it looks for. A project's own class of results
is known by the annotation of the argument that takes one.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedpriv.checking.flower_messages import Trained, arrays_of, hashed
from fedpriv.checking.subject import Numbers

KIND, STEPS = "WEIGHT_DIFF", "NUM_STEPS_CURRENT_ROUND"
_DXO, _HEADERS = "DXO", "__headers__"
_PARTS = ("data_kind", "data", "meta")


def parcel(trained: Trained) -> Any:
    """A client's result: its update, and its number of steps (1) and metrics beside it."""
    data = {name: array.copy() for name, array in trained.update.items()}
    meta = {STEPS: 1, **trained.metrics}
    if "nvflare.apis.dxo" in sys.modules:
        return sys.modules["nvflare.apis.dxo"].DXO(KIND, data, meta).to_shareable()
    return Parcel(data, meta)


def results_of(method: Callable[..., Any], found: Any) -> list[Any]:
    """The result that a parcel carries, in the forms that a method's first argument may want: the package's, and
    objects of the class that it is annotated with, made of (kind, data, meta) or of data alone.
    """
    own = sys.modules.get("nvflare.apis.dxo")
    if own is not None and not isinstance(found, Parcel):
        found = own.from_shareable(found)
    try:
        hints = list(typing.get_type_hints(method).values())
        first = hints[0] if next(iter(inspect.signature(method).parameters)) in method.__annotations__ else None
    except Exception:  # annotations of foreign code
        first = None
    if not inspect.isclass(first) or first.__module__ == "builtins":
        return [found, found.data, found.data]
    made = []
    for parts in ((found.data_kind, found.data, found.meta), (found.data,)):
        try:
            made.append(first(*parts))
        except Exception:  # a class of other arguments
            made.append(found.data)
    return [found, *made]


def parcel_context() -> Any:
    module = sys.modules.get("nvflare.apis.fl_context")
    return Context() if module is None else module.FLContext()


class Parcel(dict[str, Any]):
    """A ``Shareable`` that holds one ``DXO``, and has that one's attributes too."""

    def __init__(self, data: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        super().__init__({_HEADERS: {"__content_type__": _DXO}, _DXO: {"kind": KIND, "data": data, "meta": meta}})

    data_kind = KIND

    @property
    def data(self) -> Any:
        return self[_DXO]["data"]

    @data.setter
    def data(self, value: Any) -> None:
        self[_DXO]["data"] = value

    @property
    def meta(self) -> Any:
        return self[_DXO]["meta"]

    def get_meta_prop(self, key: str, default: Any = None) -> Any:
        return self.meta.get(key, default)

    def set_meta_prop(self, key: str, value: Any) -> None:
        self.meta[key] = value

    def get_header(self, key: str, default: Any = None) -> Any:
        return self[_HEADERS].get(key, default)

    def set_header(self, key: str, value: Any) -> None:
        self[_HEADERS][key] = value

    def get_return_code(self, default: str = "OK") -> str:
        return str(self[_HEADERS].get("__rc__", default))

    def to_shareable(self) -> Parcel:
        return self

    def update_shareable(self, shareable: Any) -> Any:
        shareable[_DXO] = self[_DXO]
        return shareable


class Context:
    """A client's context: it holds what is put in."""

    def __init__(self) -> None:
        self.props: dict[str, Any] = {}

    def get_prop(self, key: str, default: Any = None) -> Any:
        return self.props.get(key, default)

    def set_prop(self, key: str, value: Any, *_: Any, **__: Any) -> bool:
        self.props[key] = value
        return True

    def get_identity_name(self) -> str:
        return "site-1"

    def get_engine(self) -> None:
        return None

    def get_peer_context(self) -> None:
        return None


# --- what leaves -------------------------------------------------------------------------------------------


def numbers_in(found: Any) -> dict[str, Numbers]:
    """Everything in a result that leaves, as numbers; None: nothing leaves."""
    if found is None:
        return {"form.blocked": np.ones(1)}
    held = found.get(_DXO) if isinstance(found, Mapping) else None
    if held is None:
        held = _attributes(found)
    numbers = _flat(held.get("data"), "arrays") | _flat(held.get("meta"), "meta")
    numbers["form.kind"] = hashed(str(held.get("kind")))
    if isinstance(found, Mapping) and _DXO in found:
        numbers |= _flat({key: value for key, value in found.items() if key not in (_DXO, _HEADERS)}, "further")
    numbers["form.names"] = hashed(*(name for name in numbers if not name.startswith("form.")))
    return numbers


def _attributes(found: Any) -> dict[str, Any]:
    """Kind, data and meta of a result; of any other object or mapping all that it holds is data."""
    if isinstance(found, Mapping | list | tuple | np.ndarray) or not hasattr(found, "data"):
        return {"data": getattr(found, "__dict__", found)}
    further = {name: value for name, value in getattr(found, "__dict__", {}).items() if name not in _PARTS}
    meta = {**(getattr(found, "meta", None) or {}), **further}
    return {"kind": getattr(found, "data_kind", ""), "data": found.data, "meta": meta}


def _flat(value: Any, name: str) -> dict[str, Numbers]:
    if isinstance(value, Mapping):
        parts = [_flat(part, f"{name}.{key}") for key, part in value.items()]
        return {key: part for found in parts for key, part in found.items()}
    if isinstance(value, list | tuple) and not all(isinstance(one, int | float) for one in value):
        return _flat(dict(enumerate(value)), name)
    return arrays_of({name: value})
