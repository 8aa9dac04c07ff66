"""Where methods and their options are: the project's own, and in a simulation those of the user's folder.

In a checkout `strategies/`, `clients/` and `conf/` stand beside the package, in an installed wheel inside it. YAML
names a half ``strategies.fedcad.FedCAD`` in both; `load_module` finds it.

A simulation looks first into the user's folder, the working directory (`use_own_methods`). Nothing does so unasked, and
a deployment never asks: it runs what its policy approves.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from fedpriv.common.errors import OptionError

PACKAGE = Path(__file__).resolve().parents[1]
#: What Python must have on its path to import this package.
ROOT = PACKAGE.parent
#: The folder that holds `METHOD_PACKAGES` and conf/.
HOME = PACKAGE if (PACKAGE / "conf").is_dir() else ROOT
METHOD_PACKAGES = ("strategies", "clients")

#: A folder that holds one of these is a run's or a sweep's.
OF_A_RUN = ("metrics.jsonl", "summary.json", "ledger.jsonl", "classes.json", "model.safetensors", "sweep.json")

#: The user's folder, for this process and those that it starts.
VARIABLE = "FEDPRIV_OWN_METHODS"
#: The folder of `--config-dir`, for this process and those that it starts.
CONFIG_DIR = "FEDPRIV_CONFIG_DIR"

#: Called with the name of each module that YAML names, where that YAML is somebody else's: raises where it is refused.
refusal: ContextVar[Callable[[str], None] | None] = ContextVar("refusal", default=None)

_added: set[str] = set()  # folders of users that the packages' paths have held
_set_aside: list[str] = []  # what `installed_code_only` has taken from Python's path


def own_methods() -> Path | None:
    """The folder whose strategies/, clients/ and conf/strategy/ come before the project's; None where there is none."""
    folder = Path(os.environ.get(VARIABLE) or HOME)
    return folder if folder.is_dir() and not folder.samefile(HOME) else None


def own_conf() -> Path | None:
    """The folder whose strategy/ and experiment/ come before the project's: that of `--config-dir`, or conf/ of
    `own_methods`; None where there is none.
    """
    if chosen := os.environ.get(CONFIG_DIR):
        return Path(chosen)
    return None if (own := own_methods()) is None else own / "conf"


def use_own_methods(folder: Path | None = None, at_once: bool = False) -> None:
    """From now on, this process and those that it starts also run code of this folder (None: the working directory).

    Its further modules can be imported too, behind everything that is installed: a datasets.py there is no library.
    at_once: already before YAML names one of its modules; otherwise a library that is not installed, and that another
    looks for, may not be a file of that folder. A run's folder is no such folder. A checkout of this package stays on
    the path, at its end.
    """
    place = folder or Path.cwd()
    if any(os.path.lexists(place / mark) for mark in OF_A_RUN):
        return  # it may be anybody's
    chosen = str(place.absolute())
    os.environ[VARIABLE] = chosen
    sys.path[:] = [
        *(entry for entry in sys.path if not _same(entry, place)),
        *[chosen] * (at_once or _same(chosen, ROOT)),
    ]


def import_path() -> list[str]:
    """Python's path for further processes: as here, with `ROOT` in front only where another copy of this package is."""
    entries = [entry for entry in sys.path if entry]
    found = PathFinder.find_spec(PACKAGE.name, entries)
    here = found is not None and found.origin is not None and Path(found.origin).resolve().parent == PACKAGE
    return entries if here else [str(ROOT), *entries]


def installed_code_only() -> None:
    """From now on, nothing is imported from the user's folder or the working directory: the rule of a deployment.

    A checkout that is the working directory stays where it is found.
    """
    os.environ.pop(CONFIG_DIR, None)
    refused = [Path.cwd(), Path(os.environ.pop(VARIABLE, "."))]
    kept = [entry for entry in sys.path if _same(entry, ROOT) or not any(_same(entry, at) for at in refused)]
    _set_aside.extend(entry for entry in sys.path if entry not in kept)
    sys.path[:] = kept


def shipped_files(name: str) -> Iterator[Path]:
    """Where a file of the package may be that is no code: beside this code, then beside other copies of the package
    that Python knows. A bundle that flwr has made holds code alone, and its machine has fedpriv installed. Whoever
    reads one checks its digest: a folder may be anybody's.
    """
    for entry in dict.fromkeys((str(ROOT), *sys.path, *_set_aside)):
        if (found := Path(entry) / PACKAGE.name / name).is_file():
            yield found


def _same(entry: str, folder: Path) -> bool:
    return os.path.realpath(entry or ".") == os.path.realpath(folder)


@contextmanager
def with_own_methods(folder: Path | None = None) -> Iterator[None]:
    """Context of `use_own_methods`."""
    before, path = os.environ.get(VARIABLE), list(sys.path)
    use_own_methods(folder, at_once=True)
    try:
        yield
    finally:
        chosen = os.environ.get(VARIABLE)
        sys.path[:] = [*path, *(entry for entry in sys.path if entry not in (*path, chosen))]
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def method_folders(package: str) -> list[Path]:
    """The folders of ``strategies`` or ``clients``, in the order in which they are searched."""
    own = own_methods()
    places = [HOME / package] if own is None else [own / package, HOME / package]
    return [place for place in places if place.is_dir()]


def load_module(name: str) -> ModuleType:
    """A module that YAML names. Raises ImportError, and what `refusal` raises."""
    if (refuse := refusal.get()) is not None:
        refuse(name)
    package, _, rest = name.partition(".")
    if package in METHOD_PACKAGES:
        _open(package)
        _forget_another(name, rest)
    if (folder := os.environ.get(VARIABLE)) and folder not in sys.path and _is_in(Path(folder), name):
        sys.path.append(folder)
    if name not in sys.modules:
        importlib.invalidate_caches()  # it may have been written a moment ago
    module, folder = importlib.import_module(name), os.environ.get(VARIABLE)
    own = Path(folder or "", f"{name.replace('.', '/')}.py")
    if folder and package not in METHOD_PACKAGES and own.is_file() and not own.samefile(module.__file__ or os.devnull):
        raise ImportError(f"{own} is called as the installed module {name}: rename it")
    return module


def code_at(option: str, path: str | None) -> Any:
    """What an option's dotted path, package.module.NAME, names. Raises `OptionError`."""
    module, _, name = (path or "").rpartition(".")
    try:
        return getattr(load_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        words = f"must be the dotted path of code, package.module.NAME ({error})"
        raise OptionError(option, "null" if path is None else path, words) from error


def _is_in(folder: Path, name: str) -> bool:
    """Whether a folder has a module of this name, or a method's half."""
    package, _, rest = name.partition(".")
    first = folder / package / rest if package in METHOD_PACKAGES else folder / package
    return first.with_suffix(".py").is_file() or first.is_dir()


def file_of(name: str) -> Path | None:
    """The file that `load_module` would run last, found without running any; None where there is none."""
    package, _, rest = name.partition(".")
    at = [str(folder) for folder in method_folders(package)] if package in METHOD_PACKAGES else [*sys.path]
    if package not in METHOD_PACKAGES and (own := os.environ.get(VARIABLE)):
        at.append(own)
    for part in (rest if package in METHOD_PACKAGES else name).split("."):
        found = PathFinder.find_spec(part, at)
        if found is None:
            return None
        at = list(found.submodule_search_locations or ())
    return Path(found.origin) if found is not None and found.origin and Path(found.origin).is_file() else None


def is_ours(name: str) -> bool:
    """Whether a module that YAML names is one of the project's own methods."""
    file = file_of(name) if name.partition(".")[0] in METHOD_PACKAGES else None
    return file is not None and any(file.resolve().is_relative_to((HOME / one).resolve()) for one in METHOD_PACKAGES)


def _open(package: str) -> None:
    """Makes the package's path be `method_folders`; behind them stays what another's package of this name had."""
    wanted, module = [str(folder) for folder in method_folders(package)], sys.modules.get(package)
    if module is None:
        sys.modules[package] = module = _created(package, wanted)
    elif not hasattr(module, "__path__"):
        words = f"the module {package} of {getattr(module, '__file__', 'this process')} stands in the way of a package"
        raise ImportError(words)
    ours = _added.union(wanted)
    module.__path__ = [*wanted, *(entry for entry in module.__path__ if entry not in ours)]
    _added.update(wanted)


def _created(package: str, folders: list[str]) -> ModuleType:
    file = next((file for folder in folders if (file := Path(folder) / "__init__.py").is_file()), None)
    if file is None:
        spec = ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = folders
        return module_from_spec(spec)
    found = spec_from_file_location(package, file, submodule_search_locations=folders)
    assert found is not None and found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _forget_another(name: str, rest: str) -> None:
    """Drops a module of this name that was loaded from another folder: the user's folder has changed since."""
    file = getattr(sys.modules.get(name), "__file__", None)
    there = [folder / f"{rest.replace('.', '/')}.py" for folder in method_folders(name.partition(".")[0])]
    found = next((place for place in there if place.is_file()), None)
    if file is None or found is None or file == str(found):
        return
    if os.path.realpath(file) != os.path.realpath(found):
        del sys.modules[name]
