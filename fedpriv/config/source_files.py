"""The project's and the user's own source files that a run uses, found from its configuration.

They are the import closure of what runs every method and of the modules that the configuration names, read from the
files' import statements. So it is the same in every process, whatever has been imported there, and a file that the run
does not use is not in it. Python itself and installed packages are not followed: their versions are recorded.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from fedpriv.common.places import METHOD_PACKAGES, method_folders, own_methods
from fedpriv.config.method_pairs import target
from fedpriv.config.schema import Config
from fedpriv.config.strategy_options import HALVES

PROJECT = "fedpriv"

#: What runs any method, on any engine.
ALWAYS = ("fedpriv.runs.start", "fedpriv.app", "fedpriv.engines.ray_pool")

#: Modules that make tables, pages and pictures of runs, follow them or start them, and decide nothing of a result.
READERS = ("fedpriv.report", "fedpriv.commands")

#: Where a statement holds further statements; imports are in no expression.
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")

#: Names of folders into which packages are installed.
INSTALLED = {"site-packages", "dist-packages"}

#: A module's file, if there is one, and the folders in which its own modules are.
_Place = tuple[str | None, Sequence[str]]

#: At most so many files are named in an error.
NAMED = 5


def source_files(config: Config) -> dict[str, str]:
    """Name (``clients/fedcad.py``) -> the first 16 digits of the file's SHA-256, in order of names.

    As this process first saw them: what it has imported does not change with a file.
    """
    named = [config.strategy.server, config.strategy.client]
    if config.privacy.mechanism is not None:
        named += [target(config.privacy.mechanism, half) for half in HALVES]
    if getattr(config.strategy.options, "clipping", None) == "adp":  # ADP-FL's rule, of any method
        named += [target("adpfl", half) for half in HALVES]
    named += [group.path for group in (config.dataset, config.model) if group.path is not None]
    return dict(_digests(tuple(sorted(path.rpartition(".")[0] for path in named)), own_methods()))


def difference(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """In words, which files are others than they were; empty where none is."""
    words = [f"{name} is gone" for name in then if name not in now]
    words += [f"{name} is new" for name in now if name not in then]
    words += [f"{name} has changed" for name in then if name in now and then[name] != now[name]]
    more = [f"and {len(words) - NAMED} more"] if len(words) > NAMED else []
    return ", ".join([*sorted(words)[:NAMED], *more])


@lru_cache(maxsize=64)
def _digests(named: tuple[str, ...], own: Path | None) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    waiting, seen, known = [*ALWAYS, *named], set[str](), dict[str, _Place]()
    while waiting:
        module = waiting.pop()
        if module in seen or any(module == reader or module.startswith(f"{reader}.") for reader in READERS):
            continue
        seen.add(module)
        if (path := _file(module, known)) is None:
            continue
        content, is_package = path.read_bytes(), path.name == "__init__.py"
        parts = [*module.split("."), *(["__init__"] if is_package else [])]
        found["/".join(parts) + path.suffix] = hashlib.sha256(content).hexdigest()[:16]
        waiting += _imports(content, module, is_package)
        waiting += [module.rpartition(".")[0]] if "." in module else []
    return tuple(sorted(found.items()))


@lru_cache(maxsize=1024)
def _imports(content: bytes, module: str, is_package: bool) -> tuple[str, ...]:
    """What may be modules among the names that a file imports, at its top or later; not for type checking alone."""
    return tuple(dict.fromkeys(_imported(content, module, is_package)))


def _imported(content: bytes, module: str, is_package: bool) -> Iterator[str]:
    try:
        waiting: list[ast.AST] = [ast.parse(content)]
    except (SyntaxError, ValueError):  # the import says so
        return
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: None if is_package and node.level == 1 else is_package - node.level or None]
            origin = ".".join([*(parents if node.level else []), *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{name.name}" for name in node.names)
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            waiting += node.orelse
        else:
            waiting += (inner for field in BLOCKS for inner in getattr(node, field, ()))


def _is_type_checking(test: ast.expr) -> bool:
    if isinstance(test, ast.Attribute) and isinstance(test.value, ast.Name):
        return (test.value.id, test.attr) == ("typing", "TYPE_CHECKING")
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _file(module: str, known: dict[str, _Place]) -> Path | None:
    """The file of a module of the project or of the user's; None for what is installed, or for no module at all."""
    file, _ = _place(module, known)
    return Path(file) if file is not None and os.path.isfile(file) else None


def _place(module: str, known: dict[str, _Place]) -> _Place:
    """As `_Place`; ``known`` has those that were looked up before."""
    if module not in known:
        package, _, name = module.rpartition(".")
        known[module] = _inside(_place(package, known)[1], name) if package else _top(name)
    return known[module]


def _inside(folders: Sequence[str], name: str) -> _Place:
    places = [os.path.join(folder, name) for folder in folders]
    inner = [place for place in places if os.path.isdir(place)]
    files = (file for place in places for file in (os.path.join(place, "__init__.py"), f"{place}.py"))
    return next((file for file in files if os.path.isfile(file)), None), inner


def _top(name: str) -> _Place:
    if name in METHOD_PACKAGES:
        folders = [str(folder) for folder in method_folders(name)]
        own = (os.path.join(folder, "__init__.py") for folder in folders)
        return next((file for file in own if os.path.isfile(file)), None), folders
    spec = _spec(name)
    return (None, []) if spec is None else (spec.origin, list(spec.submodule_search_locations or ()))


@lru_cache(maxsize=1024)
def _spec(top: str) -> ModuleSpec | None:
    """Where a top-level module lies, if it is the project's or the user's. Imports nothing."""
    if not top or top in sys.stdlib_module_names:
        return None
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or top == PROJECT:
        return spec
    installed = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib", "platstdlib")]
    places = [spec.origin, *(spec.submodule_search_locations or ())]
    outside = any(place and Path(place).is_relative_to(folder) for place in places for folder in installed)
    elsewhere = any(place and INSTALLED.intersection(Path(place).parts) for place in places)  # of other environments
    return None if outside or elsewhere else spec
