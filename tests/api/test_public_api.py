"""The public API is a list, public_api.txt: names, signatures, commands, options. A change fails until it is recorded.

CONTRIBUTING.md has the rule for what goes; `PYTHONPATH=.:tests python tests/api/test_public_api.py` writes the list.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any

import fedpriv
from fedpriv import flower
from fedpriv.commands.table import COMMANDS
from fedpriv.config.compose import option_names
from fedpriv.config.method_pairs import target
from fedpriv.config.methods import METHODS
from tools.docs_site import REFERENCE

RECORDED = Path(__file__).with_name("public_api.txt")


def located(name: str) -> Any:
    """A module, or what a module defines."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, last = name.rpartition(".")
        return getattr(importlib.import_module(module), last)


def signature(thing: Any) -> str:
    try:
        found = str(inspect.signature(thing))
    except (TypeError, ValueError):  # a built-in constructor, as of exceptions without one of their own
        return ""
    return re.sub(r" at 0x[0-9a-f]+", "", found).replace("'", "")


def described(name: str, thing: Any, members: bool = True) -> Iterator[str]:
    """The lines of a function or class: its signature, and the public members that it defines."""
    yield name + signature(thing)
    if inspect.isclass(thing) and members:
        for member, value in vars(thing).items():
            if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
                value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                yield f"{name}.{member}{signature(value)}"


def listed() -> list[str]:
    """The lines of the list, each once, in order."""
    lines: set[str] = set()
    own = {name: getattr(fedpriv, name) for name in fedpriv.__all__}
    for name, value in own.items():
        lines |= {*described(f"fedpriv.{name}", value)}
    for name in {name for names in REFERENCE.values() for name in names} - {"fedpriv.api.calls"}:  # which is `own`
        thing = located(name)
        found = vars(thing) if inspect.ismodule(thing) else {"": thing}
        for key, value in found.items():
            where = name if inspect.ismodule(thing) else value.__module__
            public = callable(value) and getattr(value, "__module__", None) == where and not key.startswith("_")
            if public and not any(value is one for one in own.values()):
                of_events = name == "fedpriv.privacy.events"  # made by their constructors, called by accountants
                lines |= {*described(f"{name}.{key}".rstrip("."), value, members=not of_events)}
    for name in ("AppStrategy", "AppClient", "Privacy", "Trainer"):
        lines |= {*described(f"fedpriv.flower.{name}", getattr(flower, name))}
    for method, options in METHODS.items():
        pair = [target(method, half).rpartition(".")[2] for half in ("server", "client")]
        lines.add(f"strategy={method}: {', '.join([*pair, f'{method}_mod'])}: {' '.join(sorted(options.model_fields))}")
    groups: dict[str, list[str]] = {}
    for name in option_names((), ""):
        groups.setdefault(name.partition(".")[0], []).append(name.partition(".")[2])
    lines |= {f"option {group}: {' '.join(sorted(names))}" for group, names in groups.items() if group != "strategy"}
    return sorted(lines | {f"command {name}" for name in COMMANDS})


def test_the_public_api_is_as_it_is_recorded() -> None:
    recorded, now = RECORDED.read_text().splitlines(), listed()
    changes = "\n".join(unified_diff(recorded, now, "recorded", "now", lineterm="", n=0))
    assert recorded == now, f"{changes}\nThe public API has changed: see CONTRIBUTING.md; then record it:\n{__doc__}"


def test_every_documented_name_is_in_the_list() -> None:
    text = RECORDED.read_text()
    for page in ("docs/python.md", "docs/flower.md", "docs/tutorial.md", "docs/guard.md", "README.md"):
        written = (Path(__file__).resolve().parents[2] / page).read_text()
        imported = re.findall(r"from fedpriv\.flower import ([\w, ]+)", written)
        for name in {*re.findall(r"\bfedpriv\.(\w+)\(", written)} - {"new"}:
            assert re.search(rf"(?m)^fedpriv\.{name}\(", text), f"{page}: fedpriv.{name}"
        for name in (one.strip() for line in imported for one in line.split(",")):
            assert re.search(rf"\b{name}\b", text), f"{page}: {name}"


if __name__ == "__main__":
    RECORDED.write_text("\n".join(listed()) + "\n")
