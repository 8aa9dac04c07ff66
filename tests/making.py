"""Halves of a method, with the options of its YAML file and the changes that a test makes to them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

from fedpriv.client.base import Client
from fedpriv.client.contract import PublicFacts, RunFacts, Site
from fedpriv.config.compose import compose
from fedpriv.config.options import MethodOptions
from fedpriv.server.round import NO_HOOKS, Hooks, Population
from fedpriv.server.strategy import FederatedStrategy

ClientHalf = TypeVar("ClientHalf", bound=Client)
ServerHalf = TypeVar("ServerHalf", bound=FederatedStrategy)


def client(
    kind: type[ClientHalf],
    *,
    variant: str = "repaired",
    site: Site | None = None,
    facts: PublicFacts | None = None,
    **changes: Any,
) -> ClientHalf:
    """A client half. changes: values of its options, which are not checked against their ranges."""
    options = changed(kind, "clients.", changes).model_copy(update={"variant": variant})
    return kind(options, RunFacts(variant, facts, site))


def server(kind: type[ServerHalf], population: Population, *, hooks: Hooks = NO_HOOKS, **changes: Any) -> ServerHalf:
    """A server half; as `client`."""
    return kind(population, changed(kind, "strategies.", changes), hooks)


def changed(kind: type[Any], package: str, changes: dict[str, Any]) -> MethodOptions:
    """The options of the method's YAML file with other values. A subclass in a test has those of the method."""
    owner = next(one for one in kind.__mro__ if one.__module__.startswith(package))
    options = options_of(owner.__module__.partition(".")[2])
    assert changes.keys() <= type(options).model_fields.keys(), f"{kind.__name__} has no option of these: {changes}"
    return options.model_copy(update=changes)


@lru_cache
def options_of(strategy: str) -> MethodOptions:
    return compose([f"strategy={strategy}"]).strategy.options
