"""Numbers and names set in a composed tree without Hydra, which takes thousands of steps for each of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

#: Values that are set without Hydra, and the interpolations that are resolved without it: ``${an.option}``, and the
#: host's variables.
SCALAR = (str, int, float, type(None))
REFERENCE = re.compile(r"\$\{([a-z]\w*(?:\.\w+)*)\}")
#: An option may refer to one that refers to another, so often; longer ones, and circles, are for Hydra to judge.
LONGEST_CHAIN = 8
HOST = re.compile(r"\$\{oc\.env:FEDPRIV_\w+,[\w.]+\}|\$\{oc\.decode:\$\{oc\.env:FEDPRIV_\w+,[\w.]+\}\}")


def with_scalars(known: dict[str, Any], overrides: Iterable[Override]) -> dict[str, Any] | None:
    """A copy of a tree with numbers and names in place of others; None for anything that only Hydra can judge: a list,
    an option that does not exist, or one that is a group.
    """
    tree = _copied(known)
    for override in overrides:
        *groups, name = override.key_or_group.split(".")
        node: Any = tree
        for group in groups:
            node = node.get(group) if isinstance(node, dict) else None
        value = override.value()
        if not isinstance(node, dict) or isinstance(node.get(name, {}), dict | list) or not isinstance(value, SCALAR):
            return None
        node[name] = value
    try:
        return {name: _referred(value, tree) for name, value in tree.items()}
    except LookupError:
        return None


def _copied(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _copied(value) for key, value in node.items()}
    return [_copied(value) for value in node] if isinstance(node, list) else node


def _referred(node: Any, tree: dict[str, Any]) -> Any:
    """A part of a tree with every ``${option}`` replaced by that option's value. Raises `LookupError` for any other
    interpolation, and for a value that is missing.
    """
    if isinstance(node, dict):
        return {key: _referred(value, tree) for key, value in node.items()}
    if isinstance(node, list):
        return [_referred(value, tree) for value in node]
    found: Any = node
    for _ in range(LONGEST_CHAIN):
        if not isinstance(found, str) or ("${" not in found and found != "???"):
            return found
        option = REFERENCE.fullmatch(found)
        if option is None:
            raise LookupError(node)
        found = tree
        for name in option[1].split("."):
            found = found[name] if isinstance(found, dict) else None
        if not isinstance(found, SCALAR):
            raise LookupError(node)
    raise LookupError(node)


def host_known(node: Any, tree: DictConfig, *path: str) -> Any:
    """A part of a tree's plain values with what the host's variables say in place of interpolations of them."""
    if isinstance(node, dict):
        return {key: host_known(value, tree, *path, str(key)) for key, value in node.items()}
    if (
        isinstance(node, str)
        and HOST.fullmatch(node)
        and isinstance(said := OmegaConf.select(tree, ".".join(path)), SCALAR)
    ):
        return said
    return node
