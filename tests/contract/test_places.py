"""What a method may override: at most twenty places, each of them overridden by a method that is here, and taught."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import clients
from fedpriv.client.base import Client
from fedpriv.client.build import final_names
from fedpriv.server.strategy import FederatedStrategy

TABLE = Path(__file__).parents[2] / "docs" / "architecture.md"


def places(kind: type[Any]) -> set[str]:
    """Public names of a class and its bases in the project that are not final."""
    named = [
        item
        for one in kind.__mro__
        if one.__module__.startswith("fedpriv.")
        for item in (dict.fromkeys(vars(one).get("__annotations__", {})) | vars(one)).items()
    ]
    final = {
        name
        for name, value in named
        if getattr(getattr(value, "fget", getattr(value, "__func__", value)), "__final__", False)
    }
    return {name for name, _ in named if not name.startswith("_")} - final


def derived(kind: type[Any]) -> Iterator[type[Any]]:
    """The project's own."""
    for one in kind.__subclasses__():
        if one.__module__.startswith(("fedpriv.", "clients.")):
            yield from (base for base in one.__mro__ if base not in kind.__mro__)
        yield from derived(one)


def test_a_method_has_at_most_twenty_places_to_override() -> None:
    found = places(Client)
    assert len(found) <= 20, sorted(found)
    assert len(places(FederatedStrategy)) <= 20


def test_every_place_is_overridden_and_taught() -> None:
    for module in pkgutil.iter_modules(clients.__path__):
        import_module(f"clients.{module.name}")
    kinds, text = set(derived(Client)), TABLE.read_text()
    for place in places(Client):
        used = any(place in vars(kind) or place in vars(kind).get("__annotations__", {}) for kind in kinds)
        assert used, f"no method overrides {place}"
        assert f"| `{place}` |" in text, f"docs/architecture.md does not say when a method needs {place}"


def test_what_is_final_is_no_place_to_override() -> None:
    assert {"answer", "budget_plan"} & set(final_names()) and not set(final_names()) & places(Client)
