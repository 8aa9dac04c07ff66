"""The table of floors, and the import graph. Read with ast, so imports in functions and for type checking count too.

``tests/test_imports.py`` checks the code against the table, ``tools/architecture.py`` draws it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("fedpriv", "strategies", "clients")

#: Room -> floor. A room may import rooms of lower floors only; rooms on one floor do not import each other.
FLOORS = {
    "common": 1,
    "config": 2,
    "mechanisms": 2,
    "privacy": 3,
    "secure_sum": 3,
    "data": 3,
    "training": 4,
    "report": 4,
    "client": 5,
    "server": 5,
    "deployment": 6,
    "guard": 7,
    "engines": 8,
    "runs": 9,
    "attacks": 10,
    "certificates": 10,
    "apps": 10,
    "checking": 11,
    "studies": 11,
    "api": 12,
    "commands": 13,
}
#: Files beside the rooms: `python -m fedpriv`, and the app that Flower loads. No room imports one.
DOORS = {"__main__", "app", "flower"}
#: What the two halves of a paper may import of the project; of `config` the schemas of their options alone.
FOR_CLIENTS = {"client", "mechanisms", "privacy", "training", "config", "common"}
FOR_STRATEGIES = {"server", "mechanisms", "privacy", "config", "common"}


@cache
def imported(text: str, module: str) -> tuple[str, ...]:
    """Dotted names that a file imports, relative ones resolved: ``from a import b`` is a.b."""
    return tuple(_imported(text, module))


def _imported(text: str, module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = ".".join(module.split(".")[: -node.level]) + "." if node.level else ""
            origin = (parent + (node.module or "")).strip(".")
            yield from (f"{origin}.{name.name}" for name in node.names)


def under(name: str, *prefixes: str) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def sources() -> dict[str, Path]:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def room_of(name: str) -> str | None:
    """The room of a dotted name; None for doors, the package itself and external modules."""
    parts = name.split(".")
    return parts[1] if parts[0] == "fedpriv" and len(parts) > 1 and parts[1] in FLOORS else None


def module_graph(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """module -> modules of the project that it imports. A package that is only a prefix of a longer name is not an
    arrow.
    """
    graph: dict[str, set[str]] = {}
    for module, text in texts.items():
        graph[module] = set()
        for name in imported(text, module):
            while name and name not in texts:
                name = name.rpartition(".")[0]
            if name and name != module:
                graph[module].add(name)
    return graph


def read_all() -> dict[str, str]:
    return {module: file.read_text(encoding="utf-8") for module, file in sorted(sources().items())}
