"""NVFlare filters as one function of a dict of arrays: ``process(shareable, fl_ctx)``, ``process(dxo, shareable,
fl_ctx)`` or ``process_dxo`` with the same arguments, played by `fedpriv.checking.release_function`.
"""

from __future__ import annotations

import inspect
import sys
from types import SimpleNamespace
from typing import Any


class Filters:
    """Filters in the order in which a client applies them. A call gives the last one's result, None: it is blocked."""

    def __init__(self, filters: list[Any]) -> None:
        self.filters = filters

    def __call__(self, update: dict[str, Any]) -> Any:
        result: Any = SimpleNamespace(data_kind="WEIGHT_DIFF", data=update, meta={"NUM_STEPS_CURRENT_ROUND": 1})
        for one in self.filters:
            method = one.process if inspect.ismethod(getattr(one, "process", None)) else one.process_dxo
            places = [part for part in inspect.signature(method).parameters.values() if part.kind <= 1]
            two = len(places) == 2
            result = _of_the_package(method, result) if two else method(*(result, {}, None)[: len(places)])
        return {**vars(result), "data": result.data} if hasattr(result, "data") else result


def _of_the_package(method: Any, result: Any) -> Any:
    """A filter of the package itself gets the package's own classes, where they are imported."""
    package = sys.modules.get("nvflare.apis.dxo")
    if package is None:
        return method(result, SimpleNamespace())
    context = sys.modules["nvflare.apis.fl_context"].FLContext()
    found = method(package.DXO(result.data_kind, result.data, result.meta).to_shareable(), context)
    return None if found is None else package.from_shareable(found)


def as_function(target: Any) -> Filters | None:
    """A filter, or a list of filters, as a function of a dict of arrays; None for any other target."""
    filters = list(target) if isinstance(target, list | tuple) else [target]
    methods = [getattr(one, name, None) for one in filters for name in ("process", "process_dxo")]
    found = [method for method in methods if inspect.ismethod(method) and not inspect.isclass(method.__self__)]
    return Filters(filters) if filters and len({id(one.__self__) for one in found}) == len(filters) else None
