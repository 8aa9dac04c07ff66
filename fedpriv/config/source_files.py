"""The source files that a run may use: the project's, but for rooms that no run imports, and the user's own.

All files of a folder count, used or not: an edit anywhere in them is a change. Of the user's, these are the folders of
methods, and the modules that the configuration names with those beside them that they import. Python itself and
installed packages are not followed: their versions are recorded.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

from fedpriv.common.places import HOME, METHOD_PACKAGES, PACKAGE, method_folders, own_methods
from fedpriv.config.schema import Config

#: Rooms that start runs, read them, or check code and nodes: they decide nothing of a run's result.
APART = ("api", "apps", "attacks", "certificates", "checking", "commands", "guard", "report", "studies")

#: Names of folders into which packages are installed.
INSTALLED = {"site-packages", "dist-packages"}

#: At most so many files are named in an error.
NAMED = 5


def source_files(config: Config) -> dict[str, str]:
    """Name (``clients/fedcad.py``) -> the first 16 digits of the file's SHA-256, in order of names.

    As this process first saw them: what it has imported does not change with a file.
    """
    named = [config.strategy.server, config.strategy.client, *config.code.values()]
    tops = {path.partition(".")[0] for path in named if "." in path}
    return dict(_digests(tuple(sorted(tops - {*METHOD_PACKAGES})), own_methods()))


def files_of(path: str) -> dict[str, str]:
    """As `source_files`: of the user's own, those that the code at this dotted path may use."""
    found = _digests((path.partition(".")[0],), own_methods())
    return {name: digest for name, digest in found if name.split("/")[0] not in (PACKAGE.name, *METHOD_PACKAGES)}


def difference(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """In words, which files are others than they were; empty where none is. What uses a new file has changed itself."""
    words = [f"{name} is gone" for name in then if name not in now]
    words += [f"{name} has changed" for name in then if name in now and then[name] != now[name]]
    more = [f"and {len(words) - NAMED} more"] if len(words) > NAMED else []
    return ", ".join([*sorted(words)[:NAMED], *more])


@lru_cache(maxsize=64)
def _digests(named: tuple[str, ...], own: Path | None) -> tuple[tuple[str, str], ...]:
    files = {f"fedpriv/{file.relative_to(PACKAGE)}": file for file in PACKAGE.rglob("*.py")}
    files = {name: file for name, file in files.items() if name.split("/")[1] not in (*APART, *METHOD_PACKAGES)}
    users: list[Path] = []
    for folder in [place for package in METHOD_PACKAGES for place in method_folders(package)]:  # a user's come first
        inside = [file for file in folder.rglob("*.py") if files.setdefault(_name(file, folder), file) == file]
        users += inside if folder.parent != HOME else []
    waiting = [*named, *(top for file in users for top in _imported(file))]
    seen = {PACKAGE.name, *METHOD_PACKAGES, *sys.stdlib_module_names}
    while waiting:
        if (top := waiting.pop()) not in seen:
            seen.add(top)
            for file, folder in _of_user(top, own):
                files[_name(file, folder)] = file
                waiting += _imported(file)
    found = {name: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for name, file in files.items()}
    return tuple(sorted(found.items()))


def _name(file: Path, folder: Path) -> str:
    return file.relative_to(folder.parent).as_posix()


def _imported(file: Path) -> Iterator[str]:
    """The first names of all that a file imports, at its top or later."""
    with suppress(SyntaxError, ValueError):  # the import says so
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (name.name.partition(".")[0] for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


def _of_user(top: str, own: Path | None) -> Iterator[tuple[Path, Path]]:
    """The files of a top-level module, each with its package's folder (a single file with itself), if it is the user's.
    Imports nothing.
    """
    spec = PathFinder.find_spec(top, [*sys.path, *([str(own)] if own else [])])
    places = [Path(place) for place in (spec.submodule_search_locations or [spec.origin or ""])] if spec else []
    for place in places:
        outside = INSTALLED.intersection(place.parts) or place.is_relative_to(os.path.dirname(os.__file__))
        if not outside and place.exists():
            yield from ((file, place) for file in place.rglob("*.py")) if place.is_dir() else [(place, place)]
